# Every outside library, found once. Each is linked by the one layer that is its door.
find_package(Threads REQUIRED)
if(NOT WEFT_FUZZ)
  find_package(OpenMP REQUIRED COMPONENTS CXX)
endif()
find_package(ZLIB REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto SSL)
find_package(SQLite3 REQUIRED)
find_package(Protobuf REQUIRED)
find_package(yaml-cpp REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)
find_package(fmt REQUIRED)
find_package(PkgConfig REQUIRED)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)

# oneDNN's own package file asks for OpenCL's development files, which a CPU build does not need.
find_path(DNNL_INCLUDE_DIR dnnl.hpp REQUIRED)
find_library(DNNL_LIBRARY dnnl REQUIRED)
add_library(weft_dnnl INTERFACE)
target_include_directories(weft_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(weft_dnnl INTERFACE ${DNNL_LIBRARY})

# Only the schema's classes of ONNX: libonnx_proto, not the checker.
find_path(ONNX_INCLUDE_DIR onnx/onnx-ml.pb.h REQUIRED)
find_library(ONNX_PROTO_LIBRARY onnx_proto REQUIRED)
add_library(weft_onnx_schema INTERFACE)
target_include_directories(weft_onnx_schema SYSTEM INTERFACE ${ONNX_INCLUDE_DIR})
target_compile_definitions(weft_onnx_schema INTERFACE ONNX_ML=1 ONNX_NAMESPACE=onnx)
target_link_libraries(weft_onnx_schema INTERFACE ${ONNX_PROTO_LIBRARY} protobuf::libprotobuf)

# Asio without Boost: headers only.
find_path(ASIO_INCLUDE_DIR asio.hpp REQUIRED)
add_library(weft_asio INTERFACE)
target_include_directories(weft_asio SYSTEM INTERFACE ${ASIO_INCLUDE_DIR})
# Whether Asio sees std::aligned_alloc would else depend on what a file includes before it, one file allocating as another does not free.
target_compile_definitions(weft_asio INTERFACE ASIO_STANDALONE ASIO_NO_DEPRECATED ASIO_DISABLE_STD_ALIGNED_ALLOC)
target_link_libraries(weft_asio INTERFACE Threads::Threads)

find_path(ZMQ_INCLUDE_DIR zmq.hpp REQUIRED)
find_library(ZMQ_LIBRARY zmq REQUIRED)
add_library(weft_zmq INTERFACE)
target_include_directories(weft_zmq SYSTEM INTERFACE ${ZMQ_INCLUDE_DIR})
target_link_libraries(weft_zmq INTERFACE ${ZMQ_LIBRARY})

find_package(Boost REQUIRED)  # headers alone: Beast's parser of HTTP

if(WEFT_TESTS)
  find_package(GTest REQUIRED)
  find_package(Boost REQUIRED COMPONENTS context)  # fibers, for kernels as C++ (peer/backend/cuda/shim)
endif()

# What the cuda module is built with, where it is all there: nvcc, the toolkit's libraries, cuDNN. `weft` itself needs none of it.
option(WEFT_CUDA "build the cuda module where nvcc and its libraries are" ON)
set(WEFT_CUDA_LACKS "")
if(WEFT_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit 13 QUIET)
  find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${CUDAToolkit_INCLUDE_DIRS})
  find_library(CUDNN_LIBRARY cudnn HINTS ${CUDAToolkit_LIBRARY_DIR})
  if(NOT CMAKE_CUDA_COMPILER)
    list(APPEND WEFT_CUDA_LACKS "nvcc")
  endif()
  if(NOT CUDAToolkit_FOUND)
    list(APPEND WEFT_CUDA_LACKS "the CUDA toolkit, 13 or newer")
  endif()
  if(NOT CUDNN_INCLUDE_DIR OR NOT CUDNN_LIBRARY)
    list(APPEND WEFT_CUDA_LACKS "cuDNN 9")
  endif()
else()
  list(APPEND WEFT_CUDA_LACKS "-DWEFT_CUDA=ON")
endif()
list(JOIN WEFT_CUDA_LACKS ", " WEFT_CUDA_LACKS)
if(WEFT_CUDA_LACKS)
  message(STATUS "weft: no cuda module, for want of: ${WEFT_CUDA_LACKS}")  # ./dev build shows it
endif()
