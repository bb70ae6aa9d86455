# weft_backend_cuda.so: the backend, the device behind its seam and the kernels, as one library that `weft` opens. Needs
# nvcc (13 or newer), cuBLASLt, NVRTC and cuDNN 9 to build, and nothing of them in `weft` itself.
find_package(CUDAToolkit 13 REQUIRED)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR} REQUIRED)

# The kernels' code. One front end for all cards: what is written in these kernels does not depend on the card, so the PTX of
# the oldest is each one's source and only the assembler runs for each. By default the machine code of two generations (8.0's
# runs on 8.6 and 8.9 as well), which keeps a clean build short; a later card's driver translates the PTX when it first meets it.
# What is packaged has one for each card that is widespread: -DWEFT_CUDA_ARCHITECTURES="75;80;86;89;90;100;120".
set(WEFT_CUDA_ARCHITECTURES "75;80" CACHE STRING "cards for which weft_backend_cuda.so has machine code, as numbers; the first is the oldest")
list(GET WEFT_CUDA_ARCHITECTURES 0 cuda_front_end)
set(cuda_codes compute_${cuda_front_end})
foreach(architecture IN LISTS WEFT_CUDA_ARCHITECTURES)
  list(APPEND cuda_codes sm_${architecture})
endforeach()
list(JOIN cuda_codes "," cuda_codes)

if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES ${cuda_front_end})  # of CMake's own trials
endif()
if(CCACHE AND NOT CMAKE_CUDA_COMPILER_LAUNCHER)
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()
enable_language(CUDA)
if(NOT CMAKE_CUDA20_STANDARD_COMPILE_OPTION)  # CMake 3.25 does not know yet that nvcc speaks it
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
endif()

file(GLOB cuda_kernels CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cu)
# Nothing is contracted: a product and a sum are two roundings, on every card and on the host.
set(cuda_kernel_flags -fmad=false --compress-mode=size)

# All that decides bits, as far as it is ours: the kernels, and the choices of how they are generated and launched.
file(GLOB cuda_deciding_files CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cu ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.cuh
  ${CMAKE_CURRENT_SOURCE_DIR}/kernels/*.h ${CMAKE_CURRENT_SOURCE_DIR}/*.cc)
list(FILTER cuda_deciding_files EXCLUDE REGEX "/(cuda_[a-z_]*|module|kernel_cache|transfers|pinned|coverage)[.]cc$")
list(SORT cuda_deciding_files)
set(cuda_build ${CMAKE_CURRENT_BINARY_DIR}/generated/cuda_build.cc)
list(JOIN cuda_deciding_files "," cuda_deciding_list)
list(JOIN WEFT_CUDA_ARCHITECTURES "," cuda_machine_code)
add_custom_command(OUTPUT ${cuda_build}
  COMMAND ${CMAKE_COMMAND} -D OUTPUT=${cuda_build} -D FILES=${cuda_deciding_list}
    -D "COMPILER=nvcc ${CMAKE_CUDA_COMPILER_VERSION} ${cuda_kernel_flags}" -D MACHINE_CODE=${cuda_machine_code}
    -D PTX=${cuda_front_end} -P ${CMAKE_CURRENT_SOURCE_DIR}/write_build.cmake
  DEPENDS ${cuda_deciding_files} ${CMAKE_CURRENT_SOURCE_DIR}/write_build.cmake VERBATIM)

add_library(weft_cuda_kernels OBJECT ${cuda_kernels})
target_include_directories(weft_cuda_kernels PRIVATE ${PROJECT_SOURCE_DIR})
target_compile_options(weft_cuda_kernels PRIVATE ${cuda_kernel_flags} --generate-code=arch=compute_${cuda_front_end},code=[${cuda_codes}]
  -Xcompiler=-Wall,-Wextra -Werror=all-warnings)
set_target_properties(weft_cuda_kernels PROPERTIES CUDA_ARCHITECTURES OFF CUDA_STANDARD 20 CUDA_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
  CUDA_VISIBILITY_PRESET hidden)

# NVRTC, which needs no GPU, and what the sources that it compiles may include.
include(${CMAKE_CURRENT_SOURCE_DIR}/embed_sources.cmake)
add_library(weft_cuda_nvrtc STATIC nvrtc_compile.cc ${embedded_sources})
weft_compile_options(weft_cuda_nvrtc)
target_link_libraries(weft_cuda_nvrtc PUBLIC weft_dag weft_base CUDA::nvrtc)

# What stands behind the seam on a GPU.
add_library(weft_cuda_device STATIC cuda_device.cc cuda_core.cc cuda_properties.cc cuda_libraries.cc cublas_product.cc
  cudnn_convolution.cc cudnn_notes.cc cudnn_target.cc ${cuda_build})
weft_compile_options(weft_cuda_device)
target_include_directories(weft_cuda_device SYSTEM PUBLIC ${CUDNN_INCLUDE_DIR})
# The runtime is linked in: it asks only the driver, and one library less has to be where the module runs.
target_link_libraries(weft_cuda_device PUBLIC weft_backend_cuda weft_cuda_nvrtc CUDA::cudart_static CUDA::cublasLt ${CUDNN_LIBRARY})
set_target_properties(weft_cuda_nvrtc weft_cuda_device PROPERTIES POSITION_INDEPENDENT_CODE ON)

add_library(weft_backend_cuda_module MODULE module.cc $<TARGET_OBJECTS:weft_cuda_kernels>)
weft_compile_options(weft_backend_cuda_module)
target_compile_definitions(weft_backend_cuda_module PRIVATE WEFT_BUILD_ID="${WEFT_BUILD_ID}")
target_link_libraries(weft_backend_cuda_module PRIVATE weft_backend_cuda weft_cuda_device)
# Its own copies of what `weft` has as well, seen by nobody else: all is hidden but the entry. The search path is of the old kind
# (DT_RPATH), which counts for what the libraries open themselves, too: NVRTC finds its builtins beside it by no other.
target_link_options(weft_backend_cuda_module PRIVATE -Wl,--no-undefined -Wl,--disable-new-dtags
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/module.map)
set_target_properties(weft_backend_cuda_module PROPERTIES PREFIX "" OUTPUT_NAME weft_backend_cuda LINKER_LANGUAGE CXX
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/module.map
  BUILD_RPATH "$ORIGIN;${CUDAToolkit_LIBRARY_DIR}" INSTALL_RPATH "$ORIGIN")
