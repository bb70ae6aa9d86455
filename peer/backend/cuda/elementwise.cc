// Elementwise and random ops, alone or fused: a kernel of their own, compiled while the program runs.
#include <cstring>

#include "peer/backend/cuda/fused_source.h"
#include "peer/backend/cuda/kernel.h"

namespace weft::peer::cuda {
namespace {

// What is left of a FusedSource once its text has been handed over.
struct Launch {
  std::shared_ptr<CompiledKernel> kernel;
  Grid grid;
  std::vector<int64_t> input_counts, output_counts;
  bool reads_context;

  Status operator()(const Call& call) const {
    std::vector<Array<const std::byte>> parameters;
    parameters.reserve(input_counts.size());
    for (size_t i = 0; i < input_counts.size(); ++i)
      parameters.push_back(call.in<std::byte>(static_cast<int>(i), input_counts[i]));
    for (size_t i = 0; i < output_counts.size(); ++i) {
      const Array<std::byte> out = call.out<std::byte>(static_cast<int>(i), output_counts[i]);
      parameters.push_back({out.data, out.count});
    }
    if (reads_context) parameters.push_back({reinterpret_cast<const std::byte*>(call.context), 1});
    return call.device.launch(Stream::Compute, *kernel, grid, parameters.data());
  }
};

}  // namespace

KernelResult make_elementwise(const KernelRequest& request) {
  std::optional<FusedSource> made = make_fused_source(request.graph, request.group);
  if (!made) return request.decline();
  WEFT_TRY(std::shared_ptr<CompiledKernel> kernel, request.device.add_source(std::move(made->source)));
  const size_t ops = request.group.ops.size();
  std::string name = ops == 1 ? "elementwise" : "fused " + std::to_string(ops) + " ops";
  const bool reads_context = made->reads_context;
  return request.make(std::move(name),
                      Launch{std::move(kernel), made->grid, std::move(made->input_counts),
                             std::move(made->output_counts), reads_context},
                      0, std::move(made->in_place), reads_context);
}

}  // namespace weft::peer::cuda
