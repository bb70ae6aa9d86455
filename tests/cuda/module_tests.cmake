# Of what stands behind the seam on a GPU (peer/backend/cuda/module.cmake). None of it needs a GPU.
add_test(NAME cuda_ptxas COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/ptxas_test.sh)
set_tests_properties(cuda_ptxas PROPERTIES LABELS fast TIMEOUT 600 SKIP_RETURN_CODE 77)

if(TARGET weft_cuda_device)
  # The device over a runtime of the test's own, so without the library that has the real one.
  set(device ${PROJECT_SOURCE_DIR}/peer/backend/cuda)
  weft_test(NAME cuda_device SOURCES cuda_device_test.cc kernel_cache_test.cc fake_runtime.cc
    ${device}/cuda_device.cc ${device}/cuda_core.cc ${device}/cuda_properties.cc
    DEPS cuda_nvrtc backend_cuda dag base LABELS fast)
  target_include_directories(cuda_device_tests SYSTEM PRIVATE
    $<TARGET_PROPERTY:weft_cuda_device,INTERFACE_SYSTEM_INCLUDE_DIRECTORIES> ${CUDAToolkit_INCLUDE_DIRS})

  weft_test(NAME cuda_nvrtc SOURCES nvrtc_test.cc
    DEPS packed_models test_models cli onnx cuda_nvrtc backend_cuda backend_reference peer dag base LABELS fast)
  weft_test(NAME cuda_plans SOURCES cudnn_plans_test.cc DEPS cuda_device dag base LABELS fast)
  target_compile_definitions(cuda_plans_tests PRIVATE WEFT_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_include_directories(cuda_plans_tests SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS} ${CUDNN_INCLUDE_DIR})
  # It never asks the driver, whose library only machines with a GPU have; a sanitizer's link would keep it all the same.
  target_link_options(cuda_plans_tests PRIVATE -Wl,--as-needed)
else()
  message(STATUS "weft: the tests of the cuda module are left out with it")
endif()
