# One misuse that the types must refuse: SOURCE compiles as it stands, and not once MISUSE is
# defined, with a message that matches its "// refused: REGEX" line. So neither a broken include nor
# an unrelated error passes for a refusal.
#   cmake -D SOURCE=x.cc -D COMPILER=g++ -D INCLUDES=dir,dir -P check.cmake
string(REPLACE "," ";-I" includes "-I${INCLUDES}")
set(ENV{LC_ALL} C)  # plain quotes in the messages
set(compile ${COMPILER} -std=c++20 -fsyntax-only -Wall -Wextra -Werror ${includes})

file(STRINGS ${SOURCE} expected REGEX "^// refused: ")
string(REGEX REPLACE "^// refused: " "" expected "${expected}")
if(expected STREQUAL "")
  message(FATAL_ERROR "${SOURCE} lacks its line \"// refused: REGEX\"")
endif()

execute_process(COMMAND ${compile} ${SOURCE} RESULT_VARIABLE status ERROR_VARIABLE output)
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the control, ${SOURCE} without MISUSE, must compile:\n${output}")
endif()
execute_process(COMMAND ${compile} -DMISUSE ${SOURCE} RESULT_VARIABLE status ERROR_VARIABLE output)
if(status EQUAL 0)
  message(FATAL_ERROR "${SOURCE} compiles with MISUSE: the types no longer refuse it")
endif()
if(NOT output MATCHES "${expected}")
  message(FATAL_ERROR "refused, but not for the reason \"${expected}\":\n${output}")
endif()
