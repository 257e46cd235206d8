# What every folder of holdfast is built with: flags, libraries, and the functions that make a
# folder into a library with its tests, benchmarks and fuzz targets.
#   x.cc  source     x_test.cc  unit test     x_bench.cc  benchmark     x_fuzz.cc  fuzz target

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo)
endif()

# hf_flags: the flags of everything here. hf_internal: besides, the includes below src/, which the
# command line and the bindings do not get.
# -ffp-contract=off: the compiler may not fuse a multiply and an add on its own, so that the scalar
# reference computes the same bits in every build.
add_library(hf_flags INTERFACE)
set(HF_CXX_FLAGS -Wall -Wextra -Wshadow -Wconversion -Wno-sign-conversion -Wnon-virtual-dtor
    -ffp-contract=off)
target_compile_options(hf_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${HF_CXX_FLAGS}>")
# A warning stops a developer's build and not a user's, whose compiler may know newer ones.
# -Wno-restrict: GCC 12 at -O3 sees an overlap in every `"text" + std::string()` (its bug 105651).
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  target_compile_options(hf_flags INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:$<IF:$<CONFIG:Release>,-Wno-restrict,-Werror>>)
endif()
# CUDA: nvcc compiles the .cu files of folders called cuda; for Hopper, with its own instructions.
# The runtime is linked in, and the driver is looked up when a device is made.
if(HOLDFAST_CUDA)
  if(NOT CMAKE_CUDA_COMPILER)
    find_program(CMAKE_CUDA_COMPILER nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda
                 PATH_SUFFIXES bin)
  endif()
  if(NOT CMAKE_CUDA_COMPILER)
    message(FATAL_ERROR "HOLDFAST_CUDA is ON (the `cuda` preset sets it) and there is no nvcc: "
                        "install CUDA 13, set CUDA_HOME, or use the `dev` or `release` preset")
  endif()
  set(CMAKE_CUDA_ARCHITECTURES 90a)
  set(CMAKE_CUDA_STANDARD 17)  # of the compiler check alone: CMake 3.25 does not know nvcc 13's 20
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 20)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
  find_package(CUDAToolkit REQUIRED)
  set(HF_CUDA_RUNTIME CUDA::cudart_static)
endif()
# CUTLASS: headers alone, for what lies in folders called cutlass. The PyPI package nvidia-cutlass
# has them in cutlass_library/source/include.
if(HOLDFAST_CUDA AND HOLDFAST_CUTLASS)
  if(NOT EXISTS ${HOLDFAST_CUTLASS}/cute/tensor.hpp)
    message(FATAL_ERROR "HOLDFAST_CUTLASS is ${HOLDFAST_CUTLASS}, where there is no "
                        "cute/tensor.hpp: it must be CUTLASS's include directory")
  endif()
  set(HF_CUTLASS ON)
endif()
if(HOLDFAST_SANITIZE)
  target_compile_options(hf_flags INTERFACE -fsanitize=${HOLDFAST_SANITIZE} -fno-omit-frame-pointer
                         -fno-sanitize-recover=all)
  target_link_options(hf_flags INTERFACE -fsanitize=${HOLDFAST_SANITIZE})
endif()
if(HOLDFAST_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "HOLDFAST_FUZZ needs clang (the `fuzz` preset picks clang++-14); "
                        "the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  target_compile_options(hf_flags INTERFACE -fsanitize=fuzzer-no-link)
  add_custom_target(fuzzers)  # all fuzz targets
endif()
add_library(hf_internal INTERFACE)
target_link_libraries(hf_internal INTERFACE hf_flags)
target_include_directories(hf_internal INTERFACE ${PROJECT_SOURCE_DIR}/src
                           ${PROJECT_SOURCE_DIR}/include)

# holdfastConfig.cmake.in finds the same libraries for whoever links the installed archive.
list(APPEND CMAKE_MODULE_PATH ${PROJECT_SOURCE_DIR}/cmake/modules)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(simdjson REQUIRED)
find_package(hwy REQUIRED)
find_package(xxHash REQUIRED)
find_package(PCRE2 REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost 1.81 REQUIRED)  # headers: Beast and Asio
find_package(prometheus-cpp REQUIRED)
find_package(spdlog REQUIRED)
find_package(tomlplusplus REQUIRED)
set(HF_HEADER_ONLY nlohmann_json::nlohmann_json)  # nothing of it is left to link
if(HOLDFAST_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  enable_testing()
endif()
if(HOLDFAST_BENCH)
  find_package(benchmark REQUIRED)
  add_custom_target(benchmarks)  # all benchmark programs
endif()

# Sources of one folder, by kind, into the caller's `sources`, `tests`, `benches` and `fuzzes`.
macro(hf_collect folder)
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  if(HOLDFAST_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${folder}/*.cu)
    list(APPEND sources ${kernels})
    list(FILTER sources EXCLUDE REGEX "/cuda_absent/")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/")
  endif()
  if(HF_CUTLASS)
    list(FILTER sources EXCLUDE REGEX "/cutlass_absent/")
  else()
    list(FILTER sources EXCLUDE REGEX "/cutlass/")
  endif()
  set(tests ${sources})
  set(benches ${sources})
  set(fuzzes ${sources})
  list(FILTER tests INCLUDE REGEX "_test\\.(cc|cu)$")
  list(FILTER benches INCLUDE REGEX "_bench\\.(cc|cu)$")
  list(FILTER fuzzes INCLUDE REGEX "_fuzz\\.cc$")
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz)\\.(cc|cu)$")
endmacro()

# hf_checks(NAME LIBRARY files...): of the files, the tests become NAME_test, the benchmarks
# NAME_bench, and each fuzz target a program of its own.
function(hf_checks name library)
  set(tests ${ARGN})
  set(benches ${ARGN})
  set(fuzzes ${ARGN})
  list(FILTER tests INCLUDE REGEX "_test\\.(cc|cu)$")
  list(FILTER benches INCLUDE REGEX "_bench\\.(cc|cu)$")
  list(FILTER fuzzes INCLUDE REGEX "_fuzz\\.cc$")
  if(HOLDFAST_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE ${library} hf_internal GTest::gtest_main GTest::gmock
                          ${HF_HEADER_ONLY})
    target_compile_definitions(${name}_test PRIVATE HF_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    gtest_discover_tests(${name}_test TEST_PREFIX ${name}. DISCOVERY_MODE PRE_TEST
                         DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 300)
  endif()
  if(HOLDFAST_BENCH AND benches)
    add_executable(${name}_bench ${benches})
    target_link_libraries(${name}_bench PRIVATE ${library} hf_internal benchmark::benchmark_main)
    target_compile_definitions(${name}_bench PRIVATE HF_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    add_dependencies(benchmarks ${name}_bench)
  endif()
  if(HOLDFAST_FUZZ)
    foreach(file ${fuzzes})
      get_filename_component(target ${file} NAME_WE)
      add_executable(${target} ${file})
      target_link_libraries(${target} PRIVATE ${library} hf_internal)
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
      add_dependencies(fuzzers ${target})
    endforeach()
  endif()
endfunction()

# hf_folder(NAME DEPS folders... LINK libraries...): src/NAME becomes the static library hf_NAME.
# A folder of headers alone becomes an interface library.
function(hf_folder name)
  cmake_parse_arguments(arg "" "" "DEPS;LINK" ${ARGN})
  hf_collect(${PROJECT_SOURCE_DIR}/src/${name})
  list(TRANSFORM arg_DEPS PREPEND hf_)
  if(sources)
    add_library(hf_${name} STATIC ${sources})
    target_link_libraries(hf_${name} PRIVATE hf_internal PUBLIC ${arg_DEPS} ${arg_LINK})
    list(FILTER sources INCLUDE REGEX "/cutlass/.*\\.cu$")
    if(sources)
      set_source_files_properties(${sources} PROPERTIES COMPILE_OPTIONS
                                  "-isystem=${HOLDFAST_CUTLASS};--expt-relaxed-constexpr")
    endif()
    set_property(GLOBAL APPEND PROPERTY HF_OBJECTS $<TARGET_OBJECTS:hf_${name}>)
  else()
    add_library(hf_${name} INTERFACE)
    target_link_libraries(hf_${name} INTERFACE ${arg_DEPS} ${arg_LINK})
  endif()
  set_property(GLOBAL APPEND PROPERTY HF_LINK ${arg_LINK})
  hf_checks(${name} hf_${name} ${tests} ${benches} ${fuzzes})
endfunction()

# hf_public_library(NAME SOURCES folder): include/holdfast on top of all folders, as one archive of
# all their objects, which is what gets installed. Each public header must compile alone.
function(hf_public_library name)
  cmake_parse_arguments(arg "" "SOURCES" "" ${ARGN})
  hf_collect(${PROJECT_SOURCE_DIR}/${arg_SOURCES})
  get_property(objects GLOBAL PROPERTY HF_OBJECTS)
  get_property(link GLOBAL PROPERTY HF_LINK)
  list(REMOVE_DUPLICATES link)
  list(REMOVE_ITEM link ${HF_HEADER_ONLY})
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/include/holdfast/*.h)
  add_library(${name} STATIC ${sources} ${objects})
  add_library(holdfast::${name} ALIAS ${name})
  target_sources(${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}/include
                 FILES ${headers})
  set_target_properties(${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON)
  target_compile_features(${name} PUBLIC cxx_std_20)
  target_link_libraries(${name} PRIVATE ${link} $<BUILD_INTERFACE:hf_internal>
                        $<BUILD_INTERFACE:${HF_HEADER_ONLY}>)
  hf_checks(api ${name} ${tests} ${benches} ${fuzzes})
endfunction()
