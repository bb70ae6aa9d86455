#include "peer/backend/cuda/coverage.h"

#include "base/check.h"
#include "peer/backend/cuda/kernel.h"
#include "peer/program.h"

namespace weft::peer {
namespace {

using namespace cuda;

struct NoKernel final : CompiledKernel {};
struct NoLibraryOp final : LibraryOp {
  Bytes workspace_bytes() const override { return {0}; }
  std::string implementation() const override { return "library"; }
};

// Makes kernels and runs none.
class PaperDevice final : public Device, public KernelHost {
 public:
  const DeviceProperties& properties() const override { return properties_; }
  Result<Bytes> free_memory() override { return Bytes{}; }
  Result<std::byte*> allocate(Bytes) override { return nullptr; }
  void deallocate(std::byte*) override {}
  Result<std::byte*> allocate_pinned(Bytes) override { return nullptr; }
  void deallocate_pinned(std::byte*) override {}
  Status launch(Stream, const Entry&, const Grid&, const void*) override { return runs(); }
  Status launch(Stream, const CompiledKernel&, const Grid&, const void*) override { return runs(); }
  Status copy_in(Stream, const std::byte*, std::byte*, Bytes) override { return runs(); }
  Status copy_out(Stream, const std::byte*, std::byte*, Bytes) override { return runs(); }
  Status copy_within(Stream, const std::byte*, std::byte*, Bytes) override { return runs(); }
  Status fill_zero(Stream, std::byte*, Bytes) override { return runs(); }
  Status call_host(Stream, std::function<Status()>) override { return runs(); }
  Result<std::shared_ptr<Event>> make_event(bool) override { return fail(runs().error()); }
  Status record(Event&, Stream) override { return runs(); }
  Status wait_in(Stream, const Event&) override { return runs(); }
  Status wait_for(const Event&) override { return runs(); }
  Result<bool> is_over(const Event&) override { return fail(runs().error()); }
  Result<Duration> between(const Event&, const Event&) override { return fail(runs().error()); }
  Status synchronize() override { return runs(); }
  Status begin_recording() override { return runs(); }
  Result<std::shared_ptr<Recording>> end_recording() override { return fail(runs().error()); }
  Status replay(const Recording&) override { return runs(); }
  Result<std::shared_ptr<CompiledKernel>> add_source(KernelSource) override {
    return std::make_shared<NoKernel>();
  }
  Status compile() override { return {}; }
  Result<std::shared_ptr<LibraryOp>> make_product(const ProductSpec&) override {
    return std::make_shared<NoLibraryOp>();
  }
  Result<std::shared_ptr<LibraryOp>> make_convolution(const ConvolutionSpec& spec) override {
    if (spec.pads_begin != spec.pads_end) return fail(ErrorCode::Unsupported, "uneven padding");
    return std::make_shared<NoLibraryOp>();
  }
  Status run(const LibraryOp&, const std::byte*, const std::byte*, const std::byte*, std::byte*,
             std::byte*) override {
    return runs();
  }
  Result<const DeviceContext*> place(const StepContext&) override { return nullptr; }
  void retire(std::shared_ptr<const void>) override {}

 private:
  static Status runs() { return fail(ErrorCode::Internal, "a device on paper is asked to compute"); }
  DeviceProperties properties_;
};

}  // namespace

dag::BackendTraits cuda_traits() { return {.fuse_elementwise = true, .fuse_products = true}; }

Result<std::vector<dag::OpId>> ops_on_host(const dag::Graph& graph) {
  PaperDevice paper;
  std::vector<dag::OpId> found;
  for (const GroupSignature& group : group_signatures(graph)) {
    if (is_view(graph, group)) continue;
    WEFT_TRY(const auto kernel, make_group_kernel(graph, group, paper, paper));
    if (kernel->implementation().find("reference") == std::string_view::npos) continue;
    if (group.ops.size() == 1) {
      found.push_back(group.ops.front());
      continue;
    }
    // One by one: some of the sequence have kernels.
    for (const dag::OpId id : group.ops) {
      const dag::Op& op = graph.op(id);
      GroupSignature lone{{id}, {}, op.outputs, {}};
      for (const dag::ValueId input : op.inputs)
        if (input.valid() && KernelRequest::slot_of(lone.inputs, input) < 0) lone.inputs.push_back(input);
      WEFT_TRY(const auto alone, make_group_kernel(graph, lone, paper, paper));
      if (alone->implementation() == "reference") found.push_back(id);
    }
  }
  return found;
}

}  // namespace weft::peer
