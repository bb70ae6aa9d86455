// The real device over a runtime that is not: what it makes of the runtime's answers, what it keeps and what
// it lets go. What a GPU computes is no part of this.
#include "peer/backend/cuda/cuda_device.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "peer/backend/cuda/cuda_build.h"
#include "peer/backend/cuda/cuda_core.h"
#include "peer/backend/cuda/cuda_libraries.h"
#include "peer/backend/cuda/cuda_properties.h"
#include "tests/cuda/fake_runtime.h"

namespace weft::peer::cuda {

// What stands for the libraries and the build here.
Status CudaLibraries::open() { return {}; }
Result<std::shared_ptr<LibraryOp>> CudaLibraries::make_product(const ProductSpec&) const {
  return fail(ErrorCode::DeviceLost, "the library found the device lost");
}
Result<std::shared_ptr<LibraryOp>> CudaLibraries::make_convolution(const ConvolutionSpec&) const {
  return fail(ErrorCode::Internal, "the library does not know why");
}
std::span<const int> machine_code_built_in() {
  static constexpr int kMachineCode[] = {75, 80};
  return kMachineCode;
}
std::span<const int> ptx_built_in() { return machine_code_built_in().first(1); }
std::string_view code_digest() { return "0123456789abcdef"; }

namespace {

namespace fs = std::filesystem;
namespace fake = test::fake;
constexpr Stream kCompute = Stream::Compute;

struct Add {
  int* to;
  int value;
};
const fake::Kernel kAdd{sizeof(Add), [](const void* parameters) {
                          Add add;
                          std::memcpy(&add, parameters, sizeof(add));
                          *add.to += add.value;
                        }};
const Entry kAddEntry{"add", &kAdd, nullptr, sizeof(Add)};

class CudaDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(::testing::TempDir()) / "weft_cuda_device_test";
    fs::remove_all(folder_);
    fake::reset({.kernel_of_code = &kAdd});
  }
  void TearDown() override {
    device_.reset();
    fs::remove_all(folder_);
  }
  Device& open() {
    auto opened = open_cuda_device({.index = 0, .kernel_cache = folder_});
    EXPECT_TRUE(opened) << (opened ? "" : opened.error().message);
    device_ = *opened;
    return *device_;
  }
  Error refusal(int index = 0) {
    const auto opened = open_cuda_device({.index = index, .kernel_cache = {}});
    EXPECT_FALSE(opened);
    return opened ? Error{} : opened.error();
  }
  fs::path folder_;
  std::shared_ptr<Device> device_;
};

bool says(const Error& error, std::string_view text) { return error.message.find(text) != std::string::npos; }

ErrorCode code(const Status& status) { return status ? ErrorCode{} : status.error().code; }

// ---- what is there ----

TEST_F(CudaDeviceTest, NoDriverIsSaidWithWhatIsNeeded) {
  fake::reset({.driver = 0});
  EXPECT_EQ(refusal().code, ErrorCode::Unsupported);
  EXPECT_TRUE(says(refusal(), "no CUDA driver"));
  EXPECT_TRUE(says(refusal(), "580"));
}

TEST_F(CudaDeviceTest, AnOldDriverIsNamed) {
  fake::reset({.driver = 12040});
  fake::fail("cudaGetDeviceCount", cudaErrorInsufficientDriver);
  const Error error = refusal();
  EXPECT_EQ(error.code, ErrorCode::Unsupported);
  EXPECT_TRUE(says(error, "CUDA 12.4") && says(error, "580")) << error.message;
}

TEST_F(CudaDeviceTest, NoGpuAndTheDriverNotReady) {
  fake::fail("cudaGetDeviceCount", cudaErrorNoDevice);
  EXPECT_EQ(refusal().code, ErrorCode::Unsupported);
  fake::fail("cudaGetDeviceCount", cudaErrorSystemNotReady);
  EXPECT_EQ(refusal().code, ErrorCode::Unavailable);
  fake::fail("cudaInitDevice", cudaErrorDevicesUnavailable);
  EXPECT_EQ(refusal().code, ErrorCode::Unavailable);
}

TEST_F(CudaDeviceTest, AnIndexBeyondTheLastIsNotFoundAmongThoseThatThereAre) {
  const Error error = refusal(3);
  EXPECT_EQ(error.code, ErrorCode::NotFound);
  EXPECT_TRUE(says(error, "cuda:0 (Fake GPU, sm_86, 10240 MiB)")) << error.message;
  EXPECT_EQ(refusal(-1).code, ErrorCode::NotFound);
}

TEST_F(CudaDeviceTest, CardsBeforeTuringAreNamedAndRefused) {
  fake::reset({.cards = {{.name = "NVIDIA GeForce GTX 1080", .major = 6, .minor = 1}}});
  const Error error = refusal();
  EXPECT_EQ(error.code, ErrorCode::Unsupported);
  EXPECT_TRUE(says(error, "GTX 1080") && says(error, "sm_61")) << error.message;
}

TEST_F(CudaDeviceTest, PropertiesNameWhatDecidesBits) {
  const DeviceProperties& own = open().properties();
  EXPECT_EQ(own.name, "Fake GPU");
  EXPECT_TRUE(own.has_display);
  EXPECT_NE(own.libraries.find("cuDNN 91900"), std::string::npos);
  EXPECT_NE(own.libraries.find("kernels 0123456789abcdef"), std::string::npos);
  EXPECT_EQ(own.libraries.find("driver"), std::string::npos);
  device_.reset();
  fake::reset({.cards = {{.major = 10, .minor = 0}}});  // of a generation without machine code here
  EXPECT_NE(open().properties().libraries.find("translated by driver"), std::string::npos);
}

TEST(CudaProperties, CodeIsOfTheSameGenerationAndNotNewer) {
  const std::array machine_code{75, 80}, ptx{75, 75};
  EXPECT_EQ(origin_of_code(75, machine_code, ptx), CodeOrigin::Own);
  EXPECT_EQ(origin_of_code(89, machine_code, ptx), CodeOrigin::Own);
  EXPECT_EQ(origin_of_code(120, machine_code, ptx), CodeOrigin::Translated);
  EXPECT_EQ(origin_of_code(72, machine_code, ptx), CodeOrigin::None);
  EXPECT_EQ(run_time_target(89, std::array{80, 86, 90}), 86);
  EXPECT_EQ(run_time_target(121, std::array{90, 120}), 120);
  EXPECT_EQ(run_time_target(130, std::array{90, 120}), 0);
}

TEST(CudaProperties, OnlyVariablesThatChangeBitsAreNamed) {
  const std::array<std::string_view, 7> variables{"PATH=/bin",
                                                  "NVIDIA_TF32_OVERRIDE=0",
                                                  "CUDNN_LOGLEVEL_DBG=3",
                                                  "CUBLAS_WORKSPACE_CONFIG=:4096:8",
                                                  "CUDA_CACHE_PATH=x",
                                                  "CUDA_FORCE_PTX_JIT=1",
                                                  "CUDA_VISIBLE_DEVICES=1"};
  EXPECT_EQ(arithmetic_environment(variables),
            "CUBLAS_WORKSPACE_CONFIG=:4096:8 CUDA_FORCE_PTX_JIT=1 NVIDIA_TF32_OVERRIDE=0");
  const std::array<std::string_view, 1> hostile{"CUDNN_X=a\nb\tc"};
  EXPECT_EQ(arithmetic_environment(hostile), "CUDNN_X=a_b_c");
}

// ---- memory, streams, events ----

TEST_F(CudaDeviceTest, StreamsAreTheLeastUrgentAndWhoWaitsSleeps) {
  Device& device = open();
  EXPECT_EQ(fake::stream_priorities(), (std::vector<int>{0, 0, 0}));
  ASSERT_TRUE(device.make_event(false));
  EXPECT_EQ(fake::last_event_flags(), unsigned{cudaEventBlockingSync | cudaEventDisableTiming});
  ASSERT_TRUE(device.make_event(true));
  EXPECT_EQ(fake::last_event_flags(), unsigned{cudaEventBlockingSync});
}

TEST_F(CudaDeviceTest, FullMemoryIsAnErrorThatPasses) {
  Device& device = open();
  fake::fail("cudaMalloc", cudaErrorMemoryAllocation);
  const auto refused = device.allocate({1 << 20});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::ResourceExhausted);
  EXPECT_TRUE(says(refused.error(), "1048576 bytes")) << refused.error().message;
  const auto taken = device.allocate({1 << 20});
  ASSERT_TRUE(taken);
  device.deallocate(*taken);
}

TEST_F(CudaDeviceTest, ParametersAreCopiedAndOrderIsKept) {
  Device& device = open();
  int sum = 0;
  fake::hold();
  Add add{&sum, 1};
  ASSERT_TRUE(device.launch(kCompute, kAddEntry, {}, &add));
  add.value = 1000;
  const auto event = device.make_event(false);
  ASSERT_TRUE(event && device.record(**event, kCompute));
  EXPECT_FALSE(device.is_over(**event).value());
  fake::let_go();
  ASSERT_TRUE(device.wait_for(**event));
  EXPECT_TRUE(device.is_over(**event).value());
  EXPECT_EQ(sum, 1);
}

TEST_F(CudaDeviceTest, AnyThreadMayWait) {
  Device& device = open();
  const auto event = device.make_event(false);
  ASSERT_TRUE(event && device.record(**event, kCompute));
  Status waited = fail(ErrorCode::Internal, "did not run");
  std::thread([&] { waited = device.wait_for(**event); }).join();
  EXPECT_TRUE(waited);
}

TEST_F(CudaDeviceTest, EverythingIsGivenBack) {
  {
    Device& device = open();
    const auto event = device.make_event(true);
    const auto kernel = device.add_source({"k", "extern \"C\" __global__ void k(long p) {}", sizeof(Add)});
    ASSERT_TRUE(event && kernel && device.compile());
    ASSERT_TRUE(device.begin_recording());
    ASSERT_TRUE(device.end_recording());
    device_.reset();  // what was made of it may be let go later
  }
  EXPECT_EQ(fake::alive(), 0);
}

// ---- functions of the host ----

TEST_F(CudaDeviceTest, AFunctionIsLetGoOnTheThreadThatDrives) {
  Device& device = open();
  struct Owned {
    std::thread::id* gone;
    ~Owned() { *gone = std::this_thread::get_id(); }
  };
  std::thread::id called, gone;
  auto owned = std::make_shared<Owned>(&gone);
  ASSERT_TRUE(device.call_host(kCompute, [owned, &called]() -> Status {
    called = std::this_thread::get_id();
    return {};
  }));
  owned.reset();
  ASSERT_TRUE(device.synchronize());
  EXPECT_NE(called, std::thread::id());
  EXPECT_NE(called, std::this_thread::get_id());
  EXPECT_EQ(gone, std::this_thread::get_id());
}

TEST_F(CudaDeviceTest, AFunctionThatFailsIsHeardByWhoeverWaitsAndByAllAfterwards) {
  Device& device = open();
  bool later = false;
  fake::hold();
  ASSERT_TRUE(device.call_host(kCompute, []() -> Status { return fail(ErrorCode::OutOfRange, "an index"); }));
  ASSERT_TRUE(device.call_host(kCompute, [&later]() -> Status {
    later = true;
    return {};
  }));
  const auto event = device.make_event(false);
  ASSERT_TRUE(event && device.record(**event, kCompute));
  fake::let_go();
  EXPECT_EQ(code(device.wait_for(**event)), ErrorCode::OutOfRange);
  EXPECT_EQ(code(device.synchronize()), ErrorCode::OutOfRange);
  EXPECT_FALSE(later);
}

TEST_F(CudaDeviceTest, AFunctionThatThrowsIsAnError) {
  Device& device = open();
  ASSERT_TRUE(device.call_host(kCompute, []() -> Status { throw std::runtime_error("thrown"); }));
  EXPECT_EQ(code(device.synchronize()), ErrorCode::Internal);
}

// ---- recordings ----

TEST_F(CudaDeviceTest, ARecordingRepeatsWhatItWasTold) {
  Device& device = open();
  int sum = 0, called = 0;
  const Add add{&sum, 2};
  ASSERT_TRUE(device.begin_recording());
  ASSERT_TRUE(device.launch(kCompute, kAddEntry, {}, &add));
  ASSERT_TRUE(device.call_host(kCompute, [&called]() -> Status {
    ++called;
    return {};
  }));
  const auto recording = device.end_recording();
  ASSERT_TRUE(recording);
  EXPECT_EQ(sum, 0);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(device.replay(**recording));
  ASSERT_TRUE(device.synchronize());
  EXPECT_EQ(sum, 6);
  EXPECT_EQ(called, 3);
}

TEST_F(CudaDeviceTest, ARecordingKeepsTheCodeThatItRuns) {
  Device& device = open();
  int sum = 0;
  const Add add{&sum, 5};
  auto kernel = device.add_source({"k", "extern \"C\" __global__ void k(long p) {}", sizeof(Add)});
  ASSERT_TRUE(kernel && device.compile());
  ASSERT_TRUE(device.begin_recording());
  ASSERT_TRUE(device.launch(kCompute, **kernel, {}, &add));
  auto recording = device.end_recording();
  ASSERT_TRUE(recording);
  kernel->reset();
  EXPECT_EQ(fake::calls("cudaLibraryUnload"), 0);
  ASSERT_TRUE(device.replay(**recording) && device.synchronize());
  EXPECT_EQ(sum, 5);
  recording->reset();
  EXPECT_EQ(fake::calls("cudaLibraryUnload"), 1);
}

TEST_F(CudaDeviceTest, ARecordingThatFailsLeavesTheDeviceAsItWas) {
  Device& device = open();
  int sum = 0;
  const Add add{&sum, 1};
  ASSERT_TRUE(device.begin_recording());
  ASSERT_TRUE(device.launch(kCompute, kAddEntry, {}, &add));
  fake::fail("cudaStreamEndCapture", cudaErrorStreamCaptureInvalidated);
  EXPECT_FALSE(device.end_recording());
  ASSERT_TRUE(device.launch(kCompute, kAddEntry, {}, &add) && device.synchronize());
  EXPECT_EQ(sum, 1);
}

// ---- sources ----

TEST_F(CudaDeviceTest, EqualNamesAreOneKernelAndTheFirstLaunchCompiles) {
  Device& device = open();
  int sum = 0;
  const Add add{&sum, 1};
  const KernelSource source{"k", "extern \"C\" __global__ void k(long p) {}", sizeof(Add)};
  const auto first = device.add_source(source), second = device.add_source(source);
  ASSERT_TRUE(first && second);
  EXPECT_EQ(*first, *second);
  ASSERT_TRUE(device.launch(kCompute, **first, {}, &add) && device.synchronize());
  EXPECT_EQ(sum, 1);
  EXPECT_EQ(device.add_source(source).value(), *first);
  ASSERT_TRUE(device.compile());
  EXPECT_EQ(fake::calls("cudaLibraryLoadData"), 1);
}

TEST_F(CudaDeviceTest, WhatTheCompilerRefusesIsAnErrorNowAndAtTheLaunch) {
  Device& device = open();
  const auto kernel = device.add_source({"k", "this is no CUDA", sizeof(Add)});
  ASSERT_TRUE(kernel);
  EXPECT_EQ(code(device.compile()), ErrorCode::Internal);
  const Add add{};
  EXPECT_EQ(code(device.launch(kCompute, **kernel, {}, &add)), ErrorCode::Internal);
}

TEST_F(CudaDeviceTest, CodeOnDiskIsTakenAndCodeThatDoesNotLoadIsMadeAnew) {
  const KernelSource source{"k", "extern \"C\" __global__ void k(long p) {}", sizeof(Add)};
  const auto entries = [&] {
    return std::distance(fs::directory_iterator(folder_), fs::directory_iterator());
  };
  {
    const auto kernel = open().add_source(source);
    ASSERT_TRUE(kernel && device_->compile());
    EXPECT_EQ(entries(), 1);
  }
  const auto kernel = open().add_source(source);
  fake::fail("cudaLibraryLoadData", cudaErrorInvalidKernelImage);
  ASSERT_TRUE(kernel && device_->compile());
  EXPECT_EQ(entries(), 1);
}

// ---- loss ----

TEST_F(CudaDeviceTest, ALostDeviceIsLostForEverybody) {
  Device& device = open();
  const auto event = device.make_event(false);
  const auto memory = device.allocate({256}), pinned = device.allocate_pinned({256});
  ASSERT_TRUE(event && memory && pinned && device.record(**event, kCompute));
  fake::fail("cudaEventSynchronize", cudaErrorIllegalAddress, /*sticky=*/true);
  Status waited;
  std::thread([&] { waited = device.wait_for(**event); }).join();
  ASSERT_EQ(code(waited), ErrorCode::DeviceLost);
  EXPECT_TRUE(says(waited.error(), "Fake GPU: cudaEventSynchronize")) << waited.error().message;

  const int before = fake::calls("cudaMalloc");
  const Add add{};
  EXPECT_EQ(device.allocate({1}).error().code, ErrorCode::DeviceLost);
  EXPECT_EQ(fake::calls("cudaMalloc"), before);  // nobody asks it again
  EXPECT_EQ(code(device.launch(kCompute, kAddEntry, {}, &add)), ErrorCode::DeviceLost);
  EXPECT_EQ(device.is_over(**event).error().code, ErrorCode::DeviceLost);
  EXPECT_EQ(code(device.synchronize()), ErrorCode::DeviceLost);
  EXPECT_EQ(device.free_memory().error().message, waited.error().message);
  EXPECT_EQ(device.make_convolution({}).error().code, ErrorCode::DeviceLost);
  device.deallocate(*memory);
  device.deallocate_pinned(*pinned);
}

TEST_F(CudaDeviceTest, ALibraryThatFailsOnALostDeviceHasLostIt) {
  Device& device = open();
  const auto unknown = device.make_convolution({});
  EXPECT_EQ(unknown.error().code, ErrorCode::Internal);
  EXPECT_TRUE(device.synchronize());
  fake::fail("cudaMemGetInfo", cudaErrorLaunchFailure);
  EXPECT_EQ(device.make_convolution({}).error().code, ErrorCode::DeviceLost);
  EXPECT_EQ(code(device.synchronize()), ErrorCode::DeviceLost);
}

TEST_F(CudaDeviceTest, WhatALibraryCallsLostIsLost) {
  Device& device = open();
  EXPECT_EQ(device.make_product({}).error().code, ErrorCode::DeviceLost);
  EXPECT_EQ(code(device.synchronize()), ErrorCode::DeviceLost);
}

TEST(CudaErrors, EachKindHasItsCode) {
  EXPECT_EQ(code_of(cudaErrorMemoryAllocation), ErrorCode::ResourceExhausted);
  for (const cudaError_t lost : {cudaErrorIllegalAddress, cudaErrorLaunchFailure, cudaErrorLaunchTimeout,
                                 cudaErrorECCUncorrectable, cudaErrorDevicesUnavailable, cudaErrorUnknown,
                                 cudaErrorDeviceUninitialized, cudaErrorContained, cudaErrorNoDevice})
    EXPECT_EQ(code_of(lost), ErrorCode::DeviceLost) << lost;
  EXPECT_EQ(code_of(cudaErrorNoKernelImageForDevice), ErrorCode::Unsupported);
  EXPECT_EQ(code_of(cudaErrorInvalidValue), ErrorCode::Internal);
}

}  // namespace
}  // namespace weft::peer::cuda
