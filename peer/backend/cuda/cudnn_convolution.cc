#include "peer/backend/cuda/cudnn_convolution.h"

#include <algorithm>
#include <array>
#include <optional>
#include <span>

#include "peer/backend/cuda/cudnn_descriptor.h"
#include "peer/backend/cuda/cudnn_notes.h"
#include "peer/backend/cuda/library_errors.h"

namespace weft::peer::cuda {
namespace {

using Direction = ConvolutionSpec::Direction;
using Ints = std::vector<int64_t>;

// Names of a plan's operands; kSum is what a convolution hands to the bias.
constexpr int64_t kX = 1, kW = 2, kY = 3, kBias = 4, kSum = 5;
struct Operands {
  int64_t first, second, result;
};
Operands operands_of(Direction direction) {
  switch (direction) {
    case Direction::Forward:
      return {kX, kW, kY};
    case Direction::GradInput:
      return {kY, kW, kX};
    case Direction::GradWeight:
      return {kX, kY, kW};
  }
  return {kX, kW, kY};
}

std::string list(const Ints& values) {
  std::string text = "[";
  for (const int64_t value : values) text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}

std::string_view words(Arithmetic arithmetic) {
  switch (arithmetic) {
    case Arithmetic::F32:
      return "float32";
    case Arithmetic::TF32:
      return "tf32";
    case Arithmetic::BF16:
      return "bf16";
  }
  return "";
}

// cuDNN's word for it.
std::string_view words(Direction direction) {
  switch (direction) {
    case Direction::Forward:
      return "fprop";
    case Direction::GradInput:
      return "dgrad";
    case Direction::GradWeight:
      return "wgrad";
  }
  return "";
}

std::string describe(const ConvolutionSpec& spec) {
  return std::string(words(spec.arithmetic)) + " convolution " + std::string(words(spec.direction)) + " x " +
         list(spec.x) + " w " + list(spec.w) + " y " + list(spec.y) + " strides " + list(spec.strides) +
         " pads " + list(spec.pads_begin) + list(spec.pads_end) + " dilations " + list(spec.dilations) +
         " groups " + std::to_string(spec.groups);
}

int64_t positions(const ConvolutionSpec& spec, size_t dim, int64_t pads) {
  return (spec.x[dim + 2] + pads - spec.dilations[dim] * (spec.w[dim + 2] - 1) - 1) / spec.strides[dim] + 1;
}

Status check(const ConvolutionSpec& spec) {
  const size_t dims = spec.strides.size();
  const auto wrong = [&](const std::string& what) {
    return fail(ErrorCode::InvalidArgument, describe(spec) + ": " + what);
  };
  if (dims < 1 || dims > 3)
    return fail(ErrorCode::Unsupported, describe(spec) + ": only one to three spatial dims are implemented");
  if (spec.x.size() != dims + 2 || spec.w.size() != dims + 2 || spec.y.size() != dims + 2 ||
      spec.pads_begin.size() != dims || spec.pads_end.size() != dims || spec.dilations.size() != dims)
    return wrong("ranks differ");
  for (const Ints* ints : {&spec.x, &spec.w, &spec.y, &spec.strides, &spec.dilations})
    if (std::any_of(ints->begin(), ints->end(), [](int64_t value) { return value < 1; }))
      return wrong("sizes, strides and dilations must be positive");
  if (spec.groups < 1 || spec.x[1] != spec.w[1] * spec.groups || spec.w[0] % spec.groups != 0)
    return wrong("channels do not fit the groups");
  if (spec.y[0] != spec.x[0] || spec.y[1] != spec.w[0]) return wrong("batch or channels of y");
  for (size_t i = 0; i < dims; ++i)
    if (spec.pads_begin[i] < 0 || spec.pads_end[i] < 0 ||
        spec.y[i + 2] != positions(spec, i, spec.pads_begin[i] + spec.pads_end[i]))
      return wrong("y must have as many positions as the window takes");
  return {};
}

// Pads alike at both ends, wherever the windows read the same so: a stride may leave a rest that none
// reaches.
bool make_pads_even(ConvolutionSpec& spec) {
  for (size_t i = 0; i < spec.strides.size(); ++i)
    if (positions(spec, i, 2 * spec.pads_begin[i]) == spec.y[i + 2]) spec.pads_end[i] = spec.pads_begin[i];
  return spec.pads_begin == spec.pads_end;
}

// cuDNN's engines are for two spatial dims or three.
ConvolutionSpec with_two_dims(ConvolutionSpec spec) {
  if (spec.strides.size() == 1) {
    for (Ints* shape : {&spec.x, &spec.w, &spec.y}) shape->insert(shape->begin() + 2, 1);
    for (Ints* ones : {&spec.strides, &spec.dilations}) ones->insert(ones->begin(), 1);
    for (Ints* pads : {&spec.pads_begin, &spec.pads_end}) pads->insert(pads->begin(), 0);
  }
  return spec;
}

// " knobs 2=1 13=0"
Result<std::string> knobs_of(const CudnnDescriptor& config) {
  WEFT_TRY(const auto choices, get_parts(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                         CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS));
  std::string text;
  for (const CudnnDescriptor& choice : choices) {
    WEFT_TRY(const auto knob, (get_one<CUDNN_TYPE_KNOB_TYPE, cudnnBackendKnobType_t>(
                                  choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)));
    WEFT_TRY(const int64_t value,
             (get_one<CUDNN_TYPE_INT64, int64_t>(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE)));
    text += " " + std::to_string(static_cast<int>(knob)) + "=" + std::to_string(value);
  }
  return text.empty() ? text : " knobs" + text;
}

// cuDNN can name a shape that it does not take in two ways.
bool is_refusal(const Error& error) {
  return error.code == ErrorCode::Unsupported || error.code == ErrorCode::Internal;
}

}  // namespace

// The making of one plan.
class ConvolutionPlanner {
 public:
  ConvolutionPlanner(const CudnnTarget& target, const ConvolutionSpec& spec, int64_t workspace_bytes_max,
                     bool bias)
      : target_(target),
        given_(spec),
        spec_(with_two_dims(spec)),
        workspace_bytes_max_(workspace_bytes_max),
        bias_(bias) {
    plan_.direction_ = spec.direction;
    plan_.adds_bias_ = bias;
    plan_.memory_type_ = spec.arithmetic == Arithmetic::BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_FLOAT;
    plan_.target_ = target.descriptor_;
  }

  Result<ConvolutionPlan> make() {
    if (const Status described = make_graph(); !described)
      return is_refusal(described.error()) ? refuse(described.error().message) : fail(described.error());
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
      auto configs = configs_of(mode);
      if (!configs && !is_refusal(configs.error())) return fail(configs.error());
      if (!configs) continue;
      for (CudnnDescriptor& config : *configs) {
        WEFT_TRY(const auto notes, take(std::move(config), /*any=*/false));
        if (notes) return std::move(plan_);
      }
    }
    if (smallest_)
      return fail(ErrorCode::ResourceExhausted,
                  describe(given_) + ": every deterministic engine of cuDNN wants more workspace than " +
                      std::to_string(workspace_bytes_max_) + " bytes, the smallest " +
                      std::to_string(*smallest_));
    return refuse("");
  }

  // The number-th of what the heuristics name, and what is said of it; nullopt where that one does not
  // work. OutOfRange: they name fewer.
  Result<std::optional<ConvolutionCandidate>> make_candidate(size_t number) {
    WEFT_TRY_STATUS(make_graph());
    for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK}) {
      auto configs = configs_of(mode);
      if (!configs) continue;
      if (number >= configs->size()) {
        number -= configs->size();
        continue;
      }
      WEFT_TRY(const auto notes, take(std::move((*configs)[number]), /*any=*/true));
      if (!notes) return std::nullopt;
      return ConvolutionCandidate{std::move(plan_), notes->words, notes->may_be_taken};
    }
    return fail(ErrorCode::NotFound, describe(given_) + ": cuDNN names no more");
  }

 private:
  tl::unexpected<Error> refuse(const std::string& why) const {
    return fail(ErrorCode::Unsupported, describe(given_) + ": cuDNN " + std::to_string(cudnnGetVersion()) +
                                            " has no deterministic engine for it on " + target_.to_string() +
                                            (why.empty() ? "" : "\n" + why));
  }

  cudnnBackendDescriptor_t keep(CudnnDescriptor descriptor) {
    plan_.parts_.push_back(std::move(descriptor));
    return plan_.parts_.back().get();
  }

  Result<cudnnBackendDescriptor_t> make_tensor(int64_t uid, const Ints& shape, cudnnDataType_t type) {
    Ints strides(shape.size(), 1);
    for (size_t i = shape.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * shape[i];
    WEFT_TRY(auto tensor, make_descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_INT64>(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, uid));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_DATA_TYPE>(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, type));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_INT64>(tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, int64_t{16}));
    WEFT_TRY_STATUS(set_ints(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, shape));
    WEFT_TRY_STATUS(set_ints(tensor, CUDNN_ATTR_TENSOR_STRIDES, strides));
    if (uid == kSum) WEFT_TRY_STATUS(set<CUDNN_TYPE_BOOLEAN>(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, true));
    WEFT_TRY_STATUS(finalize(tensor, "a tensor"));
    return keep(std::move(tensor));
  }

  Result<cudnnBackendDescriptor_t> make_window() {
    WEFT_TRY(auto window, make_descriptor(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_DATA_TYPE>(window, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT));
    WEFT_TRY_STATUS(
        set<CUDNN_TYPE_CONVOLUTION_MODE>(window, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_INT64>(window, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS,
                                          static_cast<int64_t>(spec_.strides.size())));
    WEFT_TRY_STATUS(set_ints(window, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, spec_.strides));
    WEFT_TRY_STATUS(set_ints(window, CUDNN_ATTR_CONVOLUTION_DILATIONS, spec_.dilations));
    WEFT_TRY_STATUS(set_ints(window, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, spec_.pads_begin));
    WEFT_TRY_STATUS(set_ints(window, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, spec_.pads_end));
    WEFT_TRY_STATUS(finalize(window, "a convolution"));
    return keep(std::move(window));
  }

  // How cuDNN calls the same things in each direction.
  struct OperationNames {
    cudnnBackendDescriptorType_t type;
    cudnnBackendAttributeName_t alpha, beta, window, x, w, y;
  };
  OperationNames names() const {
    switch (spec_.direction) {
      case Direction::Forward:
        return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y};
      case Direction::GradInput:
        return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY};
      case Direction::GradWeight:
        return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY};
    }
    return {};
  }

  Result<cudnnBackendDescriptor_t> make_convolution(cudnnBackendDescriptor_t y) {
    const OperationNames name = names();
    WEFT_TRY(const auto x, make_tensor(kX, spec_.x, plan_.memory_type_));
    WEFT_TRY(const auto w, make_tensor(kW, spec_.w, plan_.memory_type_));
    WEFT_TRY(const auto window, make_window());
    WEFT_TRY(auto operation, make_descriptor(name.type));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_FLOAT>(operation, name.alpha, 1.0F));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_FLOAT>(operation, name.beta, 0.0F));
    WEFT_TRY_STATUS(set_part(operation, name.window, window));
    WEFT_TRY_STATUS(set_part(operation, name.x, x));
    WEFT_TRY_STATUS(set_part(operation, name.w, w));
    WEFT_TRY_STATUS(set_part(operation, name.y, y));
    WEFT_TRY_STATUS(finalize(operation, "a convolution"));
    return keep(std::move(operation));
  }

  // y = sum + bias, the bias along dim 1
  Result<cudnnBackendDescriptor_t> make_addition(cudnnBackendDescriptor_t sum, cudnnBackendDescriptor_t y) {
    Ints shape(spec_.y.size(), 1);
    shape[1] = spec_.y[1];
    WEFT_TRY(const auto bias, make_tensor(kBias, shape, CUDNN_DATA_FLOAT));
    WEFT_TRY(auto add, make_descriptor(CUDNN_BACKEND_POINTWISE_DESCRIPTOR));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_POINTWISE_MODE>(add, CUDNN_ATTR_POINTWISE_MODE, CUDNN_POINTWISE_ADD));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_DATA_TYPE>(add, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT));
    WEFT_TRY_STATUS(finalize(add, "an addition"));
    const auto kind = keep(std::move(add));
    WEFT_TRY(auto operation, make_descriptor(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR));
    WEFT_TRY_STATUS(set_part(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, kind));
    WEFT_TRY_STATUS(set_part(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sum));
    WEFT_TRY_STATUS(set_part(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias));
    WEFT_TRY_STATUS(set_part(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y));
    WEFT_TRY_STATUS(finalize(operation, "an addition"));
    return keep(std::move(operation));
  }

  Status make_graph() {
    std::vector<cudnnBackendDescriptor_t> operations;
    WEFT_TRY(const auto y, make_tensor(kY, spec_.y, plan_.memory_type_));
    cudnnBackendDescriptor_t sum = y;
    if (bias_) {
      WEFT_TRY(sum, make_tensor(kSum, spec_.y, CUDNN_DATA_FLOAT));
    }
    WEFT_TRY(operations.emplace_back(), make_convolution(sum));
    if (bias_) {
      WEFT_TRY(operations.emplace_back(), make_addition(sum, y));
    }
    WEFT_TRY(auto graph, make_descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
    if (target_.handle() != nullptr)
      WEFT_TRY_STATUS(set<CUDNN_TYPE_HANDLE>(graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target_.handle()));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_BACKEND_DESCRIPTOR>(
        graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, std::span<const cudnnBackendDescriptor_t>(operations)));
    WEFT_TRY_STATUS(finalize(graph, "the graph of a convolution"));
    graph_ = keep(std::move(graph));
    return {};
  }

  // The best first, as far as cuDNN can tell.
  Result<std::vector<CudnnDescriptor>> configs_of(cudnnBackendHeurMode_t mode) const {
    WEFT_TRY(auto heuristic, make_descriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
    WEFT_TRY_STATUS(set_part(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph_));
    WEFT_TRY_STATUS(set<CUDNN_TYPE_HEUR_MODE>(heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, mode));
    if (target_.handle() == nullptr)
      WEFT_TRY_STATUS(set_part(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target_.descriptor()));
    WEFT_TRY_STATUS(finalize(heuristic, "its heuristics"));
    int64_t count = 0;
    WEFT_TRY_STATUS(cudnn_status(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                          CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
                                 "its heuristics"));
    return get_parts(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
                     static_cast<size_t>(std::max<int64_t>(count, 0)));
  }

  // Makes plan_ of this engine, so configured; nullopt where it may not be taken, unless `any` may, or does
  // not work.
  Result<std::optional<EngineNotes>> take(CudnnDescriptor config, bool any) {
    WEFT_TRY(auto engines,
             get_parts(config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1));
    if (engines.empty()) return std::nullopt;
    WEFT_TRY(EngineNotes notes, notes_of(engines.front(), spec_.arithmetic));
    if (!notes.may_be_taken && (!any || notes.compiled_at_run_time)) return std::nullopt;

    WEFT_TRY(auto plan, make_descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
    WEFT_TRY_STATUS(set_part(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config.get()));
    if (target_.handle() != nullptr) {
      WEFT_TRY_STATUS(set<CUDNN_TYPE_HANDLE>(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target_.handle()));
    } else {
      WEFT_TRY_STATUS(set_part(plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target_.descriptor()));
    }
    if (const Status made = finalize(plan, "the plan of a convolution"); !made) {
      if (is_refusal(made.error())) return std::nullopt;
      return fail(made.error());
    }
    WEFT_TRY(plan_.workspace_bytes_,
             (get_one<CUDNN_TYPE_INT64, int64_t>(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE)));
    if (plan_.workspace_bytes_ > workspace_bytes_max_) {
      smallest_ = std::min(smallest_.value_or(plan_.workspace_bytes_), plan_.workspace_bytes_);
      return std::nullopt;
    }

    WEFT_TRY(const int64_t engine,
             (get_one<CUDNN_TYPE_INT64, int64_t>(engines.front(), CUDNN_ATTR_ENGINE_GLOBAL_INDEX)));
    WEFT_TRY(const std::string knobs, knobs_of(config));
    plan_.implementation_ = std::string("cudnn conv ") + (bias_ ? "bias " : "") +
                            std::string(words(spec_.direction)) + " " + std::string(words(spec_.arithmetic)) +
                            " engine " + std::to_string(engine) + knobs;
    plan_.uses_tensor_cores_ = notes.tensor_cores;
    keep(std::move(config));
    plan_.plan_ = std::move(plan);
    return notes;
  }

  const CudnnTarget& target_;
  const ConvolutionSpec& given_;
  const ConvolutionSpec spec_;
  const int64_t workspace_bytes_max_;
  const bool bias_;
  ConvolutionPlan plan_;
  cudnnBackendDescriptor_t graph_ = nullptr;
  std::optional<int64_t> smallest_;  // workspace of those that wanted too much
};

Result<ConvolutionPlan> make_convolution_plan(const CudnnTarget& target, const ConvolutionSpec& spec,
                                              const ConvolutionOptions& options) {
  WEFT_TRY_STATUS(check(spec));
  // Tensor cores for both came with compute capability 8.0.
  if (spec.arithmetic != Arithmetic::F32 && target.compute_capability() < 80)
    return fail(ErrorCode::Unsupported, std::string(words(spec.arithmetic)) +
                                            " convolutions are not available on " + target.to_string() +
                                            ", only from sm_80 on: ask for float32");
  // cuDNN 9.19 offers engines for these, but they are hardly used by anyone.
  ConvolutionSpec even = spec;
  if (!make_pads_even(even))
    return fail(ErrorCode::Unsupported,
                describe(spec) + ": pads that differ at the two ends are not given to cuDNN");
  const auto plan = [&](bool bias) {
    return ConvolutionPlanner(target, even, options.workspace_bytes_max, bias).make();
  };
  // With operands in BF16 the bias is better added to the widened result.
  if (options.bias && spec.direction == Direction::Forward && spec.arithmetic != Arithmetic::BF16) {
    auto with_bias = plan(/*bias=*/true);
    if (with_bias || with_bias.error().code == ErrorCode::DeviceLost) return with_bias;
  }
  return plan(/*bias=*/false);
}

Result<std::vector<ConvolutionCandidate>> convolution_candidates(const CudnnTarget& target,
                                                                 const ConvolutionSpec& spec,
                                                                 const ConvolutionOptions& options) {
  WEFT_TRY_STATUS(check(spec));
  ConvolutionSpec even = spec;
  if (!make_pads_even(even)) return fail(ErrorCode::Unsupported, describe(spec) + ": pads that differ");
  std::vector<ConvolutionCandidate> candidates;
  for (size_t number = 0;; ++number) {
    auto candidate =
        ConvolutionPlanner(target, even, options.workspace_bytes_max, options.bias).make_candidate(number);
    if (!candidate && candidate.error().code == ErrorCode::NotFound) return candidates;
    if (!candidate) return fail(candidate.error());
    if (*candidate) candidates.push_back(std::move(**candidate));
  }
}

Status ConvolutionPlan::run(cudnnHandle_t handle, const void* first, const void* second, const void* bias,
                            void* result, void* workspace) const {
  const Operands operands = operands_of(direction_);
  const std::array<int64_t, 4> uids{operands.first, operands.second, operands.result, kBias};
  // cuDNN takes all operands as pointers to what may change.
  const std::array<void*, 4> pointers{const_cast<void*>(first), const_cast<void*>(second), result,
                                      const_cast<void*>(bias)};
  const size_t count = adds_bias_ ? 4 : 3;
  WEFT_TRY(auto pack, make_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  WEFT_TRY_STATUS(
      set<CUDNN_TYPE_INT64>(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, std::span(uids).first(count)));
  WEFT_TRY_STATUS(set<CUDNN_TYPE_VOID_PTR>(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS,
                                           std::span(pointers).first(count)));
  WEFT_TRY_STATUS(set<CUDNN_TYPE_VOID_PTR>(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, workspace));
  WEFT_TRY_STATUS(finalize(pack, "a convolution's operands"));
  return cudnn_status(cudnnBackendExecute(handle, plan_.get(), pack.get()), implementation_);
}

}  // namespace weft::peer::cuda
