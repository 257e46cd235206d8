# xxHash::xxhash: libxxhash (Debian's package has no CMake files).
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_library(xxHash_LIBRARY xxhash)
# xxHash_DISPATCHES: the library picks the vector instructions when it runs, as Debian's for x86-64.
find_path(xxHash_DISPATCH_INCLUDE_DIR xxh_x86dispatch.h)
if(xxHash_LIBRARY AND xxHash_DISPATCH_INCLUDE_DIR)
  include(CheckLibraryExists)
  check_library_exists("${xxHash_LIBRARY}" XXH3_128bits_dispatch "" xxHash_DISPATCHES)
endif()
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY xxHash_DISPATCH_INCLUDE_DIR)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR)
if(xxHash_FOUND AND NOT TARGET xxHash::xxhash)
  add_library(xxHash::xxhash UNKNOWN IMPORTED)
  set_target_properties(xxHash::xxhash PROPERTIES
                        IMPORTED_LOCATION "${xxHash_LIBRARY}"
                        INTERFACE_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}")
endif()
