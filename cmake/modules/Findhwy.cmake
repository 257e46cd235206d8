# hwy::hwy: Highway's own CMake files where they are installed, else the library that is found.
find_package(hwy CONFIG QUIET)
include(FindPackageHandleStandardArgs)
if(TARGET hwy::hwy)
  find_package_handle_standard_args(hwy REQUIRED_VARS hwy_DIR)
else()
  find_path(hwy_INCLUDE_DIR hwy/highway.h)
  find_library(hwy_LIBRARY hwy)
  mark_as_advanced(hwy_INCLUDE_DIR hwy_LIBRARY)
  find_package_handle_standard_args(hwy REQUIRED_VARS hwy_LIBRARY hwy_INCLUDE_DIR)
  if(hwy_FOUND)
    add_library(hwy::hwy UNKNOWN IMPORTED)
    set_target_properties(hwy::hwy PROPERTIES
                          IMPORTED_LOCATION "${hwy_LIBRARY}"
                          INTERFACE_INCLUDE_DIRECTORIES "${hwy_INCLUDE_DIR}")
  endif()
endif()
