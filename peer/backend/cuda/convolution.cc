// The three convolutions by the device's library. What it has no deterministic algorithm for goes to the
// host.
#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/moves.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Ints;
using dag::OpKind;

ConvolutionSpec spec_of(const KernelRequest& request) {
  ConvolutionSpec spec;
  const dag::Shape &first = request.in_shape(0), &second = request.in_shape(1), &result = request.out_shape();
  switch (request.op.kind) {
    case OpKind::ConvGradInput:
      spec.direction = ConvolutionSpec::Direction::GradInput;
      spec.y = first, spec.w = second, spec.x = result;
      break;
    case OpKind::ConvGradWeight:
      spec.direction = ConvolutionSpec::Direction::GradWeight;
      spec.x = first, spec.y = second, spec.w = result;
      break;
    default:
      spec.direction = ConvolutionSpec::Direction::Forward;
      spec.x = first, spec.w = second, spec.y = result;
  }
  const size_t dims = spec.x.size() - 2;
  const dag::Attributes& attributes = request.attributes();
  const auto given = [&](Attr name, size_t count, int64_t otherwise) {
    return attributes.has(name) ? attributes.get_ints(name) : Ints(count, otherwise);
  };
  spec.strides = given(Attr::Strides, dims, 1);
  spec.dilations = given(Attr::Dilations, dims, 1);
  const Ints pads = given(Attr::Pads, 2 * dims, 0);
  spec.pads_begin.assign(pads.begin(), pads.begin() + static_cast<ptrdiff_t>(dims));
  spec.pads_end.assign(pads.begin() + static_cast<ptrdiff_t>(dims), pads.end());
  spec.groups = attributes.get_int(Attr::Groups, 1);
  spec.arithmetic = request.group.precision.compute;
  return spec;
}

}  // namespace

KernelResult make_convolution(const KernelRequest& request) {
  for (size_t i = 0; i < request.op.inputs.size(); ++i)
    if (request.has(i) && !request.is_f32(request.in(i))) return request.decline();
  const ConvolutionSpec spec = spec_of(request);
  auto made = request.device.make_convolution(spec);
  if (!made && made.error().code == ErrorCode::Unsupported && spec.arithmetic == Arithmetic::F32)
    return request.decline();
  if (!made) return fail(made.error());
  const std::shared_ptr<LibraryOp> op = std::move(*made);
  const int64_t first_count = request.in_count(0), second_count = request.in_count(1),
                count = request.out_count();
  const bool rounds = spec.arithmetic == Arithmetic::BF16;
  const auto narrow = [rounds](int64_t elements) { return rounds ? align_up(elements * 2, 256) : 0; };
  const int64_t first_bytes = narrow(first_count), second_bytes = narrow(second_count),
                library_at = first_bytes + second_bytes + narrow(count);
  const int64_t channels = spec.w[0], inner = product(spec.y, 2, spec.y.size());
  const auto run = [=, first = request.input_slot(0), second = request.input_slot(1),
                    bias = request.input_slot(2),
                    result = request.output_slot(0)](const Call& call) -> Status {
    const std::byte *a = address(call.inputs[static_cast<size_t>(first)]),
                    *b = address(call.inputs[static_cast<size_t>(second)]);
    std::byte* y = address(call.outputs[static_cast<size_t>(result)]);
    if (rounds) {
      WEFT_TRY_STATUS(
          call.launch(k_to_bf16, grid_for(first_count / kConvertedEach),
                      ToBf16{call.in<float>(first, first_count), call.scratch<uint16_t>(0, first_count)}));
      WEFT_TRY_STATUS(call.launch(
          k_to_bf16, grid_for(second_count / kConvertedEach),
          ToBf16{call.in<float>(second, second_count), call.scratch<uint16_t>(first_bytes, second_count)}));
      a = call.workspace, b = call.workspace + first_bytes, y = call.workspace + first_bytes + second_bytes;
    }
    WEFT_TRY_STATUS(call.device.run(*op, a, b, nullptr, y, call.workspace + library_at));
    if (rounds)
      WEFT_TRY_STATUS(call.launch(k_from_bf16, grid_for(count / kConvertedEach),
                                  FromBf16{call.scratch<const uint16_t>(first_bytes + second_bytes, count),
                                           call.out<float>(result, count)}));
    if (bias < 0) return {};
    Grid grid = grid_for(inner);
    grid.blocks_y = static_cast<uint32_t>(std::clamp<int64_t>(count / inner, 1, 65535));
    return call.launch(
        k_add_bias, grid,
        AddBias{call.in<float>(bias, channels), call.out<float>(result, count), inner, channels});
  };
  return request.make(op->implementation(), run, library_at + op->workspace_bytes().value);
}

}  // namespace weft::peer::cuda
