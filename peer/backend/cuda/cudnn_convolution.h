// Convolutions by cuDNN's graph API: which of its engines computes one, chosen once, and the run of it. Equal
// bits are the first demand: only engines that cuDNN declares deterministic, and none that is compiled at run
// time or calls cuBLASLt, so that no other library's version has a say. Float32 means float32: no tensor
// cores; transforms in float32 are allowed (FFT by its note, Winograd where cuDNN does not note it: wgrad's
// engine 17), as they are in PyTorch. The choice follows from the spec, the device and cuDNN's version (of TF32, from
// NVIDIA_TF32_OVERRIDE too): the heuristics' first answer that may be taken.
//
// A choice needs no device: cuDNN takes the properties of one as JSON in its place, so that tests go through
// the choices of many cards on a machine that has none.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "peer/backend/cuda/cudnn_descriptor.h"
#include "peer/backend/cuda/library_ops.h"

namespace weft::peer::cuda {

// The card that plans are made for. A value; copies share the descriptor.
class CudnnTarget {
 public:
  // `handle` outlives the target and what is made for it.
  static Result<CudnnTarget> of_device(cudnnHandle_t handle);
  // From what properties() said of a device. Plans made so can be asked about, not run. The names that cuDNN
  // wants are those of tests/cuda/device_properties; InvalidArgument, in its words, when one is amiss.
  static Result<CudnnTarget> of_properties(std::string_view json);

  int compute_capability() const { return compute_capability_; }  // 75, 120
  const std::string& name() const { return name_; }               // "NVIDIA GeForce RTX 3080"
  const std::string& properties() const { return properties_; }   // JSON
  std::string to_string() const;                                  // "sm_86 (NVIDIA GeForce RTX 3080)"

  cudnnHandle_t handle() const { return handle_; }  // null without a device
  cudnnBackendDescriptor_t descriptor() const { return descriptor_.get(); }

 private:
  friend class ConvolutionPlanner;
  Status read_properties();

  cudnnHandle_t handle_ = nullptr;
  std::shared_ptr<void> descriptor_;
  std::string properties_, name_;
  int compute_capability_ = 0;
};

struct ConvolutionOptions {
  int64_t workspace_bytes_max = int64_t{256} << 20;
  bool bias = false;  // Forward: also add a bias [M], if an engine does both
};

// A convolution with its engine. Any thread may run it, at any time, with a handle of its own.
class ConvolutionPlan {
 public:
  int64_t workspace_bytes() const { return workspace_bytes_; }
  // "cudnn conv fprop engine 38 knobs 2=1 13=0": with the library's version, all there is to know of the
  // choice.
  const std::string& implementation() const { return implementation_; }
  bool adds_bias() const { return adds_bias_; }  // if one was asked for and this is false: the caller's
  bool uses_tensor_cores() const { return uses_tensor_cores_; }
  // Of both operands and the result; for arithmetic BF16 sums are float32, but cuDNN has no engine that
  // writes them so: they come rounded to BF16, and the caller widens them.
  cudnnDataType_t memory_type() const { return memory_type_; }

  // Submits the work to the handle's stream. Operands in the order of ConvolutionSpec::Direction, at
  // multiples of 16; `bias` null unless adds_bias(); `workspace` has workspace_bytes(), contents do not
  // matter. REQUIRES: the target was of a device, the handle's.
  Status run(cudnnHandle_t handle, const void* first, const void* second, const void* bias, void* result,
             void* workspace) const;

 private:
  friend class ConvolutionPlanner;
  ConvolutionPlan() = default;

  ConvolutionSpec::Direction direction_ = ConvolutionSpec::Direction::Forward;
  int64_t workspace_bytes_ = 0;
  std::string implementation_;
  bool adds_bias_ = false, uses_tensor_cores_ = false;
  cudnnDataType_t memory_type_ = CUDNN_DATA_FLOAT;
  std::shared_ptr<void> target_;
  std::vector<CudnnDescriptor> parts_;  // what the plan was made of, in case that cuDNN refers to it
  CudnnDescriptor plan_;
};

// Unsupported, naming the shape and the card: no engine that may be taken, pads that differ at the two ends,
// or arithmetic that the card lacks. ResourceExhausted: there are some, but each wants more workspace.
// InvalidArgument: shapes that contradict each other. DeviceLost.
Result<ConvolutionPlan> make_convolution_plan(const CudnnTarget& target, const ConvolutionSpec& spec,
                                              const ConvolutionOptions& options);

// What cuDNN would compute a convolution with.
struct ConvolutionCandidate {
  ConvolutionPlan plan;
  std::string notes;          // "" or " winograd tensor-cores", what cuDNN says of the engine
  bool may_be_taken = false;  // make_convolution_plan takes the first of which this is true
};
// Every plan that the heuristics name, the best first as far as they can tell, but those that are compiled
// at run time; to be measured.
Result<std::vector<ConvolutionCandidate>> convolution_candidates(const CudnnTarget& target,
                                                                 const ConvolutionSpec& spec,
                                                                 const ConvolutionOptions& options);

}  // namespace weft::peer::cuda
