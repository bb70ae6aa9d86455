// Matrix products by the device's library, one call a product where the batch allows it.
#include <optional>

#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/moves.h"
#include "peer/backend/cuda/stored.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Shape;

// Products that one library call makes, and where each call's operands begin.
struct Plan {
  ProductSpec spec;
  struct Offsets {
    int64_t a, b, c;  // elements
  };
  std::vector<Offsets> calls;
};

// Strides by dim of `batch` with which an operand's matrices are walked: 0 where it is stretched.
std::vector<int64_t> batch_strides(const Shape& operand, const Shape& batch) {
  const int64_t matrix = operand[operand.size() - 2] * operand.back();
  std::vector<int64_t> strides(batch.size(), 0);
  int64_t stride = matrix;
  for (size_t d = operand.size() - 2, at = batch.size(); d-- > 0;) {
    --at;
    strides[at] = operand[d] == 1 ? 0 : stride;
    stride *= operand[d];
  }
  return strides;
}

// The inner dims of the batch that a and b each walk with one stride become the library's batch; those that
// are left are calls of their own.
void plan_batches(Plan& plan, const Shape& a, const Shape& b, const Shape& c) {
  const Shape batch(c.begin(), c.end() - 2);
  const std::vector<int64_t> of_a = batch_strides(a, batch), of_b = batch_strides(b, batch);
  ProductSpec& p = plan.spec;
  p.batch = 1;
  size_t inner = batch.size();  // dims from here on are one
  while (inner > 0) {
    const size_t d = inner - 1;
    const bool first = p.batch == 1;
    if (batch[d] > 1 && !first && (of_a[d] != p.stride_a * p.batch || of_b[d] != p.stride_b * p.batch)) break;
    if (batch[d] > 1 && first) p.stride_a = of_a[d], p.stride_b = of_b[d];
    p.batch *= batch[d];
    inner = d;
  }
  p.stride_c = p.m * p.n;
  plan.calls = {{0, 0, 0}};
  for (size_t d = 0; d < inner; ++d) {
    int64_t below = 1;
    for (size_t e = d + 1; e < batch.size(); ++e) below *= batch[e];
    std::vector<Plan::Offsets> next;
    for (const auto& call : plan.calls)
      for (int64_t i = 0; i < batch[d]; ++i)
        next.push_back({call.a + i * of_a[d], call.b + i * of_b[d], call.c + i * below * p.m * p.n});
    plan.calls = std::move(next);
  }
}

Plan plan_of(const KernelRequest& request) {
  const Shape &a = request.in_shape(0), &b = request.in_shape(1), &c = request.out_shape();
  Plan plan;
  ProductSpec& p = plan.spec;
  p.transpose_a = request.attributes().get_int(Attr::TransA) != 0;
  p.transpose_b = request.attributes().get_int(Attr::TransB) != 0;
  p.m = c[c.size() - 2];
  p.n = c.back();
  p.k = p.transpose_a ? a[a.size() - 2] : a.back();
  p.arithmetic = request.group.precision.compute;
  const int64_t batches = product(c, 0, c.size() - 2);
  if (product(b, 0, b.size() - 2) == 1 && !p.transpose_a && product(a, 0, a.size() - 2) == batches) {
    p.m *= batches;  // x[B,T,K] w[K,N]: rows are rows
    p.stride_c = p.m * p.n;
    plan.calls = {{0, 0, 0}};
  } else {
    plan_batches(plan, a, b, c);
  }
  return plan;
}

constexpr size_t kCallsMax = 4096;

// Positions in the signature.
struct Slots {
  int a, b, bias, c;
};

// `stored`: what the second factor is made of, in place of slots.b.
KernelResult make_planned(const KernelRequest& request, const Plan& plan, const Slots& slots,
                          const std::optional<StoredOperand>& stored = {}) {
  if (plan.spec.k == 0 || plan.calls.size() > kCallsMax) return request.decline();
  auto made = request.device.make_product(plan.spec);
  if (!made && made.error().code == ErrorCode::Unsupported && plan.spec.arithmetic == Arithmetic::F32)
    return request.decline();
  if (!made) return fail(made.error());
  const std::shared_ptr<LibraryOp> op = std::move(*made);
  const int64_t a_count = request.in_count(0), b_count = stored ? stored->count() : request.in_count(1);
  const bool rounds = plan.spec.arithmetic == Arithmetic::BF16;
  const int64_t element = rounds ? 2 : 4;
  const int64_t a_bytes = rounds ? align_up(a_count * element, 256) : 0,
                b_bytes = rounds ? align_up(b_count * element, 256) : 0,
                library_bytes = op->workspace_bytes().value,
                widened_at = align_up(a_bytes + b_bytes + library_bytes, 256);
  const auto run = [=](const Call& call) -> Status {
    const auto input = [&](int slot) { return address(call.inputs[static_cast<size_t>(slot)]); };
    Array<const float> b{};
    if (stored) {
      const Array<float> widened = call.scratch<float>(widened_at, b_count);
      WEFT_TRY_STATUS(stored->widen(call, widened));
      b = {widened.data, widened.count};
    } else {
      b = call.in<float>(slots.b, b_count);
    }
    const std::byte *first = input(slots.a), *second = reinterpret_cast<const std::byte*>(b.data),
                    *bias = slots.bias < 0 ? nullptr : input(slots.bias);
    std::byte* result = address(call.outputs[static_cast<size_t>(slots.c)]);
    if (rounds) {
      WEFT_TRY_STATUS(
          call.launch(k_to_bf16, grid_for(a_count / kConvertedEach),
                      ToBf16{call.in<float>(slots.a, a_count), call.scratch<uint16_t>(0, a_count)}));
      WEFT_TRY_STATUS(call.launch(k_to_bf16, grid_for(b_count / kConvertedEach),
                                  ToBf16{b, call.scratch<uint16_t>(a_bytes, b_count)}));
      first = call.workspace, second = call.workspace + a_bytes;
    }
    for (const auto& at : plan.calls)
      WEFT_TRY_STATUS(call.device.run(*op, first + at.a * element, second + at.b * element, bias,
                                      result + at.c * 4, call.workspace + a_bytes + b_bytes));
    return {};
  };
  return request.make(op->implementation(), run,
                      stored ? widened_at + b_count * 4 : a_bytes + b_bytes + library_bytes);
}

bool multiplies(const KernelRequest& request) {
  return request.op.kind == dag::OpKind::MatMul && request.is_f32(request.in(0)) &&
         request.is_f32(request.in(1));
}

// x[..,K] times a stored matrix, all of which is float32 while that runs.
KernelResult make_stored_matmul(const KernelRequest& request) {
  const StoredOperand stored(request, 1);
  if (!stored.can_widen(stored.count())) return request.decline();
  Plan plan;
  ProductSpec& p = plan.spec;
  p.transpose_b = request.attributes().get_int(Attr::TransB) != 0;
  p.n = request.out_shape().back();
  p.k = request.in_shape(0).back();
  p.m = request.out_count() / p.n;
  p.batch = 1;
  p.stride_c = p.m * p.n;
  p.arithmetic = request.group.precision.compute;
  plan.calls = {{0, 0, 0}};
  return make_planned(request, plan, {request.input_slot(0), -1, -1, request.output_slot(0)}, stored);
}

}  // namespace

KernelResult make_matmul(const KernelRequest& request) {
  if (request.op.kind == dag::OpKind::StoredMatMul) return make_stored_matmul(request);
  if (request.op.kind == dag::OpKind::StoredWeight) return make_stored_weight(request);
  if (request.op.kind == dag::OpKind::Attention || request.op.kind == dag::OpKind::AttentionGrad)
    return make_attention(request);
  if (!multiplies(request)) return request.decline();
  return make_planned(request, plan_of(request),
                      {request.input_slot(0), request.input_slot(1), -1, request.output_slot(0)});
}

KernelResult make_product_group(const KernelRequest& request) {
  using Epilogue = ProductSpec::Epilogue;
  const std::vector<dag::OpId>& ops = request.group.ops;
  if (ops.size() < 2 || ops.size() > 3 || request.group.outputs.size() != 1 || !multiplies(request))
    return request.decline();
  const dag::Op &add = request.graph.op(ops[1]), &last = request.graph.op(ops.back());
  if (add.kind != dag::OpKind::Add || request.group.outputs[0] != last.outputs[0]) return request.decline();
  const dag::ValueId bias = add.inputs[add.inputs[0] == request.op.outputs[0] ? 1 : 0];
  Plan plan = plan_of(request);
  plan.spec.epilogue = Epilogue::Bias;
  if (ops.size() == 3) {
    const bool gelu = last.kind == dag::OpKind::Gelu && last.attributes.get_int(Attr::Approximate) != 0;
    if (!gelu && last.kind != dag::OpKind::Relu) return request.decline();
    plan.spec.epilogue = gelu ? Epilogue::BiasGelu : Epilogue::BiasRelu;
  }
  return make_planned(
      request, plan,
      {request.input_slot(0), request.input_slot(1), KernelRequest::slot_of(request.group.inputs, bias), 0});
}

}  // namespace weft::peer::cuda
