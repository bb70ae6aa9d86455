#include "peer/backend/cpu/cpu_backend.h"

#include <dnnl.hpp>

#include <cmath>
#include <cstring>
#include <new>

#include "peer/backend/cpu/kernel.h"
#include "peer/backend/cpu/layout.h"

namespace weft::peer {
namespace {

using namespace cpu;
using dag::Layout;
using dag::Tensor;
using dag::TensorSpec;

std::string_view to_string(dnnl::cpu_isa isa) {
  switch (isa) {
    case dnnl::cpu_isa::sse41:
      return "sse41";
    case dnnl::cpu_isa::avx:
      return "avx";
    case dnnl::cpu_isa::avx2:
      return "avx2";
    case dnnl::cpu_isa::avx2_vnni:
      return "avx2_vnni";
    case dnnl::cpu_isa::avx512_core:
      return "avx512_core";
    case dnnl::cpu_isa::avx512_core_vnni:
      return "avx512_core_vnni";
    case dnnl::cpu_isa::avx512_core_bf16:
      return "avx512_core_bf16";
    case dnnl::cpu_isa::avx512_core_amx:
      return "avx512_core_amx";
    default:
      return "other";
  }
}

// One switch for all: oneDNN has read ONEDNN_MAX_CPU_ISA and looked at the processor, and our loops, the
// matrix product among them, take what goes with its answer.
const char* widest_loops() {
  const std::string_view isa = to_string(dnnl::get_effective_cpu_isa());
  if (isa == "sse41" || isa == "avx") return "baseline";
  return isa.starts_with("avx2") ? "v3" : "v4";
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(const CpuOptions& options)
      : team_(options.threads, options.pin),
        loops_(loop_table(widest_loops())),
        own_convolutions_(options.own_convolutions) {}

  std::string_view name() const override { return "cpu"; }

  std::string numerics_fingerprint() const override {
    const dnnl_version_t* version = dnnl_version();
    return "cpu oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + " isa=" + std::string(to_string(dnnl::get_effective_cpu_isa())) +
           " loops=" + loops_.isa + (kFlushesSubnormals ? " flush-subnormals" : "") +
           (own_convolutions_ ? " own-convolutions" : "");
  }

  BackendTraits traits() const override {
    BackendTraits traits;
    traits.fuse_elementwise = true;
    // oneDNN's own preference: 16 channels to a vector of AVX-512, 8 to one of AVX2. Older sets have blocked
    // kernels forward only, and keep everything plain.
    const std::string_view isa = to_string(dnnl::get_effective_cpu_isa());
    if (isa.starts_with("avx512")) traits.convolution_layout = Layout::Blocked16;
    if (isa.starts_with("avx2")) traits.convolution_layout = Layout::Blocked8;
    return traits;
  }

  Bytes storage_bytes(const TensorSpec& spec, Layout) const override { return spec.bytes(); }
  Result<std::unique_ptr<Memory>> allocate(Bytes size) override { return CpuMemory::make(size); }

  Result<std::unique_ptr<Kernel>> make_kernel(const dag::Graph& graph, const GroupSignature& group) override
      try {
    const Team::Entered entered(team_);
    return make_group_kernel(graph, group, team_, loops_, own_convolutions_);
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "cpu backend: no memory to make a kernel for " +
                                                  std::string(to_string(graph.op(group.ops.front()).kind)) +
                                                  "; try a smaller microbatch");
  }

  Status upload(const Tensor& tensor, View target, Layout layout) override {
    WEFT_TRY_STATUS(need_layout(tensor.spec(), layout));
    const Team::Entered entered(team_);
    convert_layout(team_, loops_, tensor.spec(), Layout::Plain, tensor.bytes().data(), layout,
                   pointer<std::byte>(target));
    return {};
  }
  Result<Tensor> download(View source, const TensorSpec& spec, Layout layout) override {
    WEFT_TRY_STATUS(need_layout(spec, layout));
    const Team::Entered entered(team_);
    Tensor tensor(spec);
    convert_layout(team_, loops_, spec, layout, pointer<std::byte>(source), Layout::Plain,
                   tensor.mutable_bytes().data());
    return tensor;
  }

  Status fill_zero(View target, const TensorSpec& spec) override {
    std::byte* data = pointer<std::byte>(target);
    const Team::Entered entered(team_);
    team_.ranges(spec.bytes().value, kGrain * 4, [&](int64_t begin, int64_t end) {
      std::memset(data + begin, 0, static_cast<size_t>(end - begin));
    });
    return {};
  }
  Status copy(View source, View target, const TensorSpec& spec) override {
    const Team::Entered entered(team_);
    convert_layout(team_, loops_, spec, Layout::Plain, pointer<std::byte>(source), Layout::Plain,
                   pointer<std::byte>(target));
    return {};
  }
  Status accumulate(View from, View into, const TensorSpec& spec) override {
    WEFT_TRY_STATUS(need_f32(spec, "accumulate"));
    const float* x = pointer<const float>(from);
    float* y = pointer<float>(into);
    const Team::Entered entered(team_);
    team_.ranges(spec.element_count(), kGrain, [&](int64_t begin, int64_t end) {
      loops_.reduce_into[kReduceSum](y + begin, x + begin, end - begin);
    });
    return {};
  }

  Result<double> sum_of_squares(View source, const TensorSpec& spec) override {
    WEFT_TRY_STATUS(need_f32(spec, "sum_of_squares"));
    const float* x = pointer<const float>(source);
    const int64_t count = spec.element_count(), blocks = (count + kGrain - 1) / kGrain;
    std::vector<double> sums(static_cast<size_t>(blocks));
    const Team::Entered entered(team_);
    team_.ranges(blocks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b)
        sums[static_cast<size_t>(b)] =
            loops_.sum_of_squares(x + b * kGrain, std::min(kGrain, count - b * kGrain));
    });
    double total = 0;
    for (const double sum : sums) total += sum;
    return total;
  }

  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step, View parameter,
                View gradient, std::span<const View> slots, const TensorSpec& spec) override;

  Status synchronize() override { return {}; }
  void release_calling_thread() const override { Team::release_calling_thread(); }

 private:
  static Status need_f32(const TensorSpec& spec, const char* what) {
    if (spec.dtype == dag::DType::F32) return {};
    return fail(ErrorCode::Unsupported,
                std::string("cpu backend: ") + what + " of " + dag::to_string(spec) +
                    "; only f32 is trained here, the reference backend takes other dtypes");
  }

  Team team_;
  const LoopTable& loops_;
  bool own_convolutions_;
};

Status CpuBackend::update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step, View parameter,
                          View gradient, std::span<const View> slots, const TensorSpec& spec) {
  WEFT_TRY_STATUS(need_f32(spec, "update"));
  float* p = pointer<float>(parameter);
  const float* g = pointer<const float>(gradient);
  float* first = slots.empty() ? nullptr : pointer<float>(slots[0]);
  float* second = slots.size() < 2 ? nullptr : pointer<float>(slots[1]);
  const Team::Entered entered(team_);
  if (optimizer.type == dag::OptimizerType::Sgd) {
    SgdArgs args{};
    args.learning_rate = static_cast<float>(step.learning_rate);
    args.weight_decay = static_cast<float>(optimizer.weight_decay);
    args.momentum = static_cast<float>(optimizer.momentum);
    args.keep = static_cast<float>(1 - optimizer.dampening);
    args.gradient_scale = static_cast<float>(step.gradient_scale);
    args.first = step.step == 1;
    args.nesterov = optimizer.nesterov;
    team_.ranges(spec.element_count(), kGrain, [&](int64_t begin, int64_t end) {
      loops_.sgd(p + begin, g + begin, first == nullptr ? nullptr : first + begin, end - begin, args);
    });
    return {};
  }
  const bool decoupled = optimizer.type == dag::OptimizerType::AdamW;
  const double t = static_cast<double>(step.step);
  AdamArgs args{};
  args.decay_factor = decoupled ? static_cast<float>(1 - step.learning_rate * optimizer.weight_decay) : 1.0f;
  args.weight_decay = decoupled ? 0.0f : static_cast<float>(optimizer.weight_decay);
  args.beta1 = static_cast<float>(optimizer.beta1);
  args.one_minus_beta1 = static_cast<float>(1 - optimizer.beta1);
  args.beta2 = static_cast<float>(optimizer.beta2);
  args.one_minus_beta2 = static_cast<float>(1 - optimizer.beta2);
  args.step_size = static_cast<float>(step.learning_rate / (1 - std::pow(optimizer.beta1, t)));
  args.inverse_sqrt_correction2 = static_cast<float>(1 / std::sqrt(1 - std::pow(optimizer.beta2, t)));
  args.epsilon = static_cast<float>(optimizer.epsilon);
  args.gradient_scale = static_cast<float>(step.gradient_scale);
  team_.ranges(spec.element_count(), kGrain, [&](int64_t begin, int64_t end) {
    loops_.adam(p + begin, g + begin, first + begin, second + begin, end - begin, args);
  });
  return {};
}

}  // namespace

Result<std::unique_ptr<Backend>> make_cpu_backend(const CpuOptions& options) {
  constexpr int kThreadsMax = 1024;
  if (options.threads < 0 || options.threads > kThreadsMax)
    return fail(ErrorCode::InvalidArgument, "cpu backend: " + std::to_string(options.threads) +
                                                " threads; give 0 (all processors) to " +
                                                std::to_string(kThreadsMax));
  try {
    return std::unique_ptr<Backend>(std::make_unique<CpuBackend>(options));
  } catch (const std::exception& error) {
    return fail(ErrorCode::Internal, std::string("cpu backend: oneDNN does not start: ") + error.what());
  }
}

}  // namespace weft::peer
