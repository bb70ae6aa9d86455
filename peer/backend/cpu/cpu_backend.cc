#include "peer/backend/cpu/cpu_backend.h"

#include <dnnl.hpp>

#include <cstring>
#include <new>

#include "peer/backend/cpu/kernel.h"
#include "peer/backend/cpu/layout.h"
#include "peer/backend/cpu/update.h"
#include "peer/backend/host/host_memory.h"
#include "peer/backend/host/host_timer.h"

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

  // Raised with a change of the bits that kernels of ours compute. 2: rows alone in forward programs.
  static constexpr int kKernels = 2;
  std::string numerics_fingerprint() const override {
    const dnnl_version_t* version = dnnl_version();
    return "cpu oneDNN " + std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
           std::to_string(version->patch) + " isa=" + std::string(to_string(dnnl::get_effective_cpu_isa())) +
           " loops=" + loops_.isa + " kernels=" + std::to_string(kKernels) +
           (kFlushesSubnormals ? " flush-subnormals" : "") + (own_convolutions_ ? " own-convolutions" : "");
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
  Result<std::unique_ptr<Memory>> allocate(Bytes size) override {
    WEFT_TRY_STATUS(admit(size, {*used_}));
    return CpuMemory::make(size, used_);
  }
  Result<MemoryUse> memory() const override { return host_memory_use({*used_}); }

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
  Result<std::unique_ptr<Download>> begin_download(View source, const TensorSpec& spec, Layout layout,
                                                   const Encoding& encoding) override try {
    WEFT_TRY_STATUS(need_dense(encoding));
    WEFT_TRY_STATUS(need_layout(spec, layout));
    const Team::Entered entered(team_);
    Tensor tensor(spec, dag::allocate_tensor_bytes(static_cast<size_t>(spec.bytes().value)));
    convert_layout(team_, loops_, spec, layout, pointer<std::byte>(source), Layout::Plain,
                   tensor.mutable_bytes().data());
    return std::make_unique<FinishedDownload>(std::move(tensor));
  } catch (const std::bad_alloc&) {
    return fail(ErrorCode::ResourceExhausted, "cpu backend: no memory to download " + dag::to_string(spec));
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

  Result<std::unique_ptr<Download>> begin_sums_of_squares(std::span<const TensorView> sources) override {
    for (const TensorView& source : sources) WEFT_TRY_STATUS(need_f32(source.spec, "sums_of_squares"));
    const Team::Entered entered(team_);
    const std::vector<double> sums = cpu::sums_of_squares(team_, loops_, sources);
    return std::make_unique<FinishedDownload>(
        dag::from_doubles({dag::DType::F64, {static_cast<int64_t>(sums.size())}}, sums));
  }
  Status update(const dag::OptimizerSpec& optimizer, const dag::UpdateStep& step,
                std::span<const ParameterUpdate> parameters) override {
    for (const ParameterUpdate& parameter : parameters) WEFT_TRY_STATUS(need_f32(parameter.spec, "update"));
    const Team::Entered entered(team_);
    update_parameters(team_, loops_, optimizer, step, parameters);
    return {};
  }

  Result<std::unique_ptr<Timer>> start_timer() override { return std::make_unique<HostTimer>(); }
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
  std::shared_ptr<int64_t> used_ = std::make_shared<int64_t>(0);
};

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
