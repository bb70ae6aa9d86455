# weft_layer(NAME dag SOURCES a.cc b.cc DEPS base LIBRARIES lib... [ALONE a.cc] [MODULE] [COLD])
#   One folder, one target: weft_<name>, which sees only the layers it lists. Includes are written from the root.
#   ALONE: sources that are not compiled together with others (weft_unity).
#   COLD: nothing in it is hot; it is compiled by -Os, which has 0.65 of the code of -O1.
#   MODULE: it stands in a module (peer/backend/module.h) as well as in the program. Nobody replaces one function of it.
function(weft_layer)
  cmake_parse_arguments(L "MODULE;COLD" "NAME" "SOURCES;DEPS;LIBRARIES;ALONE" ${ARGN})
  add_library(weft_${L_NAME} STATIC ${L_SOURCES})
  weft_compile_options(weft_${L_NAME})
  weft_unity(weft_${L_NAME} ALONE ${L_ALONE})
  set(house weft_house)
  if(L_COLD)
    weft_cold(weft_${L_NAME})
    set(house weft_house_of_cold)
  endif()
  if(L_MODULE)
    set_target_properties(weft_${L_NAME} PROPERTIES POSITION_INDEPENDENT_CODE ON)
    target_compile_options(weft_${L_NAME} PRIVATE -fno-semantic-interposition)
    set(house weft_house_of_modules)
  endif()
  if(NOT "OpenMP::OpenMP_CXX" IN_LIST L_LIBRARIES)  # it changes what headers say
    weft_precompiled(weft_${L_NAME} ${house})
  endif()
  foreach(dep IN LISTS L_DEPS)
    target_link_libraries(weft_${L_NAME} PUBLIC weft_${dep})
  endforeach()
  target_link_libraries(weft_${L_NAME} PRIVATE ${L_LIBRARIES})
endfunction()

function(weft_cold target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-Os>)
  # Where it inlines less it no longer sees that an optional was asked before it is read.
  target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
endfunction()

# weft_precompiled(target house): it shares the precompiled header of a house, whose options have to be its own.
function(weft_precompiled target house)
  if(TARGET ${house})
    target_precompile_headers(${target} REUSE_FROM ${house})
    # GCC 12 then warns within the library's own strings.
    target_compile_options(${target} PRIVATE -Wno-array-bounds -Wno-restrict -Wno-stringop-overflow -Wno-stringop-overread)
  endif()
endfunction()
# weft_house(NAME [headers...]): a target whose precompiled header others share.
function(weft_house name)
  add_library(${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/house.cc)
  weft_compile_options(${name})
  target_precompile_headers(${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/house.h ${ARGN})
endfunction()

function(weft_compile_options target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic $<$<CXX_COMPILER_ID:GNU>:-Wshadow=local> $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety> -Wnon-virtual-dtor -Wunused -Werror)
  if(WEFT_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${WEFT_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(${target} PRIVATE -fsanitize=${WEFT_SANITIZE})
    # GCC takes what it has instrumented itself for uses of what is not initialised.
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
    if(WEFT_SANITIZE STREQUAL thread)
      # Asio's fences are not seen by GCC's thread sanitizer, which warns of each.
      target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    endif()
  endif()
endfunction()

# weft_unity(target [ALONE a.cc b.cc])
#   Several sources are compiled as one, for most of the time goes into headers that they share: a third of it. Two that
#   give one name to different things in unnamed namespaces cannot be: one of them is compiled ALONE, or all are (ALL).
function(weft_unity target)
  cmake_parse_arguments(U "" "" "ALONE" ${ARGN})
  if(NOT WEFT_UNITY OR "ALL" IN_LIST U_ALONE)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 6)
  set_source_files_properties(${U_ALONE} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
endfunction()

# weft_test(NAME dag SOURCES ... DEPS dag base [LIBRARIES ...] [LABELS fast] [ALONE a.cc])
#   tests/<name>/ becomes the program <name>_tests and one ctest entry.
function(weft_test)
  cmake_parse_arguments(T "" "NAME;TIMEOUT" "SOURCES;DEPS;LIBRARIES;LABELS;ALONE" ${ARGN})
  add_executable(${T_NAME}_tests ${T_SOURCES})
  weft_compile_options(${T_NAME}_tests)
  weft_unity(${T_NAME}_tests ALONE ${T_ALONE})
  if(NOT "OpenMP::OpenMP_CXX" IN_LIST T_LIBRARIES)
    weft_precompiled(${T_NAME}_tests weft_house_of_tests)
  endif()
  # A test runs once for each time that it is compiled: a fifth less time than -O2, the layers keep theirs.
  target_compile_options(${T_NAME}_tests PRIVATE $<$<CONFIG:Release>:-O1>)
  foreach(dep IN LISTS T_DEPS)
    target_link_libraries(${T_NAME}_tests PRIVATE weft_${dep})
  endforeach()
  target_link_libraries(${T_NAME}_tests PRIVATE ${T_LIBRARIES} GTest::gtest_main)
  add_test(NAME ${T_NAME} COMMAND ${T_NAME}_tests WORKING_DIRECTORY ${PROJECT_SOURCE_DIR})
  if(NOT T_TIMEOUT)
    set(T_TIMEOUT 600)
  endif()
  weft_timeout(${T_NAME} ${T_TIMEOUT})
  set_tests_properties(${T_NAME} PROPERTIES LABELS "${T_LABELS}")
endfunction()

# weft_timeout(test SECONDS): after which it counts as failed. Under a sanitizer it takes several times as long.
function(weft_timeout test seconds)
  if(WEFT_SANITIZE STREQUAL thread)
    math(EXPR seconds "${seconds} * 10")
  elseif(WEFT_SANITIZE)
    math(EXPR seconds "${seconds} * 3")
  endif()
  set_tests_properties(${test} PROPERTIES TIMEOUT ${seconds})
endfunction()
