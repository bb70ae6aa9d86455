#include "tests/gpu/convolution_survey.h"

#include <cuda_runtime_api.h>
#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <vector>

#include "peer/backend/cuda/cudnn_convolution.h"

namespace weft::test {
namespace {

using namespace peer::cuda;
using dag::Arithmetic;
using nlohmann::json;
using Direction = ConvolutionSpec::Direction;

struct Layer {
  int64_t channels_in, channels_out, size, kernel, stride;
};
constexpr Layer kLayers[] = {{3, 64, 224, 7, 2},   {64, 64, 56, 3, 1},   {64, 128, 56, 3, 2},
                             {64, 128, 56, 1, 2},  {128, 128, 28, 3, 1}, {128, 256, 28, 3, 2},
                             {128, 256, 28, 1, 2}, {256, 256, 14, 3, 1}, {256, 512, 14, 3, 2},
                             {256, 512, 14, 1, 2}, {512, 512, 7, 3, 1}};
constexpr int kRuns = 5;

ConvolutionSpec spec_of(const Layer& layer, int64_t batch, Direction direction, Arithmetic arithmetic) {
  const int64_t pad = layer.kernel / 2, out = (layer.size + 2 * pad - layer.kernel) / layer.stride + 1;
  return {.direction = direction,
          .x = {batch, layer.channels_in, layer.size, layer.size},
          .w = {layer.channels_out, layer.channels_in, layer.kernel, layer.kernel},
          .y = {batch, layer.channels_out, out, out},
          .strides = {layer.stride, layer.stride},
          .pads_begin = {pad, pad},
          .pads_end = {pad, pad},
          .dilations = {1, 1},
          .arithmetic = arithmetic};
}

constexpr size_t kBytes = size_t{1} << 30;  // the largest operand at a batch of 64 takes a fifth

struct Memory {
  explicit Memory(size_t bytes) {
    if (cudaMalloc(&data, bytes) != cudaSuccess) data = nullptr;
  }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  // Numbers in [-1, 1), a new piece of them every 16 MiB.
  bool fill(size_t bytes, uint64_t seed) const {
    std::vector<float> piece(size_t{1} << 22);
    for (size_t at = 0; at < bytes; at += piece.size() * sizeof(float)) {
      for (size_t i = 0; i < piece.size(); ++i)
        piece[i] = static_cast<float>(static_cast<int32_t>(splitmix(seed + at + i) >> 32)) * 0x1p-31F;
      if (cudaMemcpy(static_cast<std::byte*>(data) + at, piece.data(),
                     std::min(bytes - at, piece.size() * sizeof(float)),
                     cudaMemcpyHostToDevice) != cudaSuccess)
        return false;
    }
    return true;
  }
  std::vector<float> read(size_t count) const {
    std::vector<float> values(count);
    cudaMemcpy(values.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }
  static uint64_t splitmix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ULL;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    return x ^ (x >> 31);
  }
  void* data = nullptr;
};

double apart(const std::vector<float>& values, const std::vector<float>& expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double d = static_cast<double>(values[i]) - static_cast<double>(expected[i]);
    difference += d * d, norm += static_cast<double>(expected[i]) * static_cast<double>(expected[i]);
  }
  return std::sqrt(difference / norm);
}

size_t elements_of(const ConvolutionSpec& spec) {
  const auto& shape = spec.direction == Direction::Forward     ? spec.y
                      : spec.direction == Direction::GradInput ? spec.x
                                                               : spec.w;
  size_t count = 1;
  for (const int64_t size : shape) count *= static_cast<size_t>(size);
  return count;
}

// A run's seconds, the median; below 0: it failed.
double measure(cudnnHandle_t handle, const ConvolutionPlan& plan, const Memory& a, const Memory& b,
               const Memory& c) {
  const Memory workspace(static_cast<size_t>(std::max<int64_t>(plan.workspace_bytes(), 16)));
  if (workspace.data == nullptr) return -1;
  cudaEvent_t begin = nullptr, end = nullptr;
  cudaEventCreate(&begin), cudaEventCreate(&end);
  std::vector<float> milliseconds;
  for (int i = 0; i < kRuns + 1; ++i) {
    cudaEventRecord(begin, nullptr);
    if (!plan.run(handle, a.data, b.data, nullptr, c.data, workspace.data)) return -1;
    cudaEventRecord(end, nullptr);
    if (cudaEventSynchronize(end) != cudaSuccess) return -1;
    float each = 0;
    cudaEventElapsedTime(&each, begin, end);
    if (i > 0) milliseconds.push_back(each);
  }
  cudaEventDestroy(begin), cudaEventDestroy(end);
  std::sort(milliseconds.begin(), milliseconds.end());
  return static_cast<double>(milliseconds[kRuns / 2]) / 1e3;
}

const char* word(Direction direction) {
  return direction == Direction::Forward ? "fprop" : direction == Direction::GradInput ? "dgrad" : "wgrad";
}

}  // namespace

Result<std::string> survey_convolutions(int device, int batch) {
  if (const cudaError_t set = cudaSetDevice(device); set != cudaSuccess)
    return fail(ErrorCode::Unsupported, cudaGetErrorString(set));
  cudnnHandle_t handle = nullptr;
  if (const cudnnStatus_t created = cudnnCreate(&handle); created != CUDNN_STATUS_SUCCESS)
    return fail(ErrorCode::Unsupported, cudnnGetErrorString(created));
  WEFT_TRY(const auto target, CudnnTarget::of_device(handle));
  const Memory a(kBytes), b(kBytes), c(kBytes);
  if (!a.fill(kBytes / 4, 1) || !b.fill(kBytes / 4, 2))
    return fail(ErrorCode::ResourceExhausted, "no 3 GiB of the GPU's memory");
  json all = json::array();
  for (const Arithmetic arithmetic : {Arithmetic::F32})
    for (const Layer& layer : kLayers)
      for (const Direction direction : {Direction::Forward, Direction::GradInput, Direction::GradWeight}) {
        const auto spec = spec_of(layer, batch, direction, arithmetic);
        WEFT_TRY(const auto candidates,
                 convolution_candidates(target, spec, {.workspace_bytes_max = int64_t{4} << 30}));
        json rows = json::array();
        std::vector<float> plain;
        for (const ConvolutionCandidate& each : candidates) {
          json row{{"implementation", each.plan.implementation()},
                   {"notes", each.notes},
                   {"taken", each.may_be_taken},
                   {"workspace_bytes", each.plan.workspace_bytes()},
                   {"seconds", measure(handle, each.plan, a, b, c)}};
          if (each.may_be_taken && arithmetic == Arithmetic::F32) {
            if (each.notes.empty() && plain.empty()) plain = c.read(elements_of(spec));
            if (!each.notes.empty()) row["apart"] = json();
          }
          rows.push_back(std::move(row));
        }
        for (size_t i = 0; i < rows.size() && !plain.empty(); ++i)
          if (rows[i].contains("apart") && rows[i]["seconds"] > 0) {
            measure(handle, candidates[i].plan, a, b, c);
            rows[i]["apart"] = apart(c.read(elements_of(spec)), plain);
          }
        all.push_back(
            {{"layer", {layer.channels_in, layer.channels_out, layer.size, layer.kernel, layer.stride}},
             {"direction", word(direction)},
             {"arithmetic", arithmetic == Arithmetic::F32 ? "fp32" : "tf32"},
             {"candidates", rows}});
      }
  return all.dump();
}

}  // namespace weft::test
