# Installs BUILD into a fresh prefix, checks what lies there, builds the consumer on it with nothing
# else of the source tree in sight, and runs that on the tiny model.
#   cmake -D BUILD=build/dev -D SOURCE=. -D COMPILER=g++ -D GENERATOR=Ninja -P check.cmake
set(work ${BUILD}/install-test)
set(prefix ${work}/prefix)
file(REMOVE_RECURSE ${work})

function(must)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE status
                  OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0)
    string(JOIN " " command ${ARGN})
    message(FATAL_ERROR "${command}\nended with ${status}:\n${output}")
  endif()
  set(output "${output}" PARENT_SCOPE)
endfunction()

must(${CMAKE_COMMAND} --install ${BUILD} --prefix ${prefix})

# The public headers and no others; the program; no internal archive.
file(GLOB public RELATIVE ${SOURCE}/include ${SOURCE}/include/holdfast/*.h)
file(GLOB_RECURSE installed RELATIVE ${prefix}/include ${prefix}/include/*)
list(SORT public)
list(SORT installed)
if(NOT public STREQUAL installed)
  message(FATAL_ERROR "installed headers: ${installed}\npublic headers: ${public}")
endif()
file(GLOB_RECURSE archives RELATIVE ${prefix} ${prefix}/*.a)
if(NOT archives MATCHES "^[^;]*libholdfast\\.a$")
  message(FATAL_ERROR "installed archives: ${archives}; there should be libholdfast.a alone")
endif()
must(${prefix}/bin/holdfast --help)

must(${CMAKE_COMMAND} -S ${SOURCE}/tests/install -B ${work}/consumer -G ${GENERATOR}
     -D CMAKE_CXX_COMPILER=${COMPILER} -D CMAKE_PREFIX_PATH=${prefix})
must(${CMAKE_COMMAND} --build ${work}/consumer)
must(${work}/consumer/consumer ${SOURCE}/models/gptoss-tiny-A)
message("${output}")

# The tokens of the independent implementation for prompt [307].
file(READ ${SOURCE}/tests/golden/reference/gptoss-tiny-A.json reference)
string(JSON ids GET "${reference}" prompts 0 greedy_ids)
set(expected "")
foreach(i RANGE 7)
  string(JSON id GET "${ids}" ${i})
  string(APPEND expected " ${id}")
endforeach()
if(NOT output MATCHES "holdfast [0-9.]+:${expected}\n")
  message(FATAL_ERROR "the consumer printed \"${output}\", the reference has \"${expected}\"")
endif()
file(REMOVE_RECURSE ${work})
