// Attention over a few matrices of scores at a time: their products by the device's library, and between them
// the scores' own kernels. What is held at once is one head's scores, or as many as kScoresHeld allows.
#include <algorithm>

#include "peer/backend/cuda/kernel.h"
#include "peer/backend/cuda/kernels/attention.h"
#include "peer/backend/cuda/kernels/softmax.h"
#include "peer/backend/cuda/operands.h"

namespace weft::peer::cuda {
namespace {

using dag::Attr;
using dag::Shape;

constexpr int64_t kScoresHeld = int64_t{64} << 20;  // bytes

// An operand that is broadcast to the scores.
struct Addend {
  int slot = -1;
  int64_t count = 0, row = 0, column = 0;
  std::vector<int64_t> firsts{};  // by matrix

  Addend(const KernelRequest& request, size_t operand, const Shape& scores)
      : slot(request.input_slot(operand)), count(request.in_count(operand)) {
    if (slot < 0) return;
    const Shape& shape = request.in_shape(operand);
    std::vector<int64_t> strides(scores.size(), 0);
    int64_t stride = 1;
    for (size_t d = shape.size(), to = scores.size(); d-- > 0;) {
      --to;
      strides[to] = shape[d] == 1 ? 0 : stride;
      stride *= shape[d];
    }
    row = strides[strides.size() - 2], column = strides.back();
    firsts = {0};
    for (size_t d = 0; d + 2 < scores.size(); ++d) {
      std::vector<int64_t> next;
      for (const int64_t first : firsts)
        for (int64_t i = 0; i < scores[d]; ++i) next.push_back(first + i * strides[d]);
      firsts = std::move(next);
    }
  }
  ScorePlaces places(int64_t matrix) const {
    return slot < 0 ? ScorePlaces{} : ScorePlaces{firsts[static_cast<size_t>(matrix)], row, column};
  }
};

Shape scores_of(const KernelRequest& request, size_t first) {
  const Shape &q = request.in_shape(first), &v = request.in_shape(first + 2);
  Shape scores(q.begin(), q.end() - 1);
  scores.push_back(v[v.size() - 2]);
  return scores;
}

struct Plan {
  int64_t matrices, queries, keys, inner, columns;
  int64_t together = 1;  // matrices at a time: a divisor of all
  bool trans_b, zero_rows;
  float alpha, fill;
  int q, k, v;
  Addend bias, keep;

  Plan(const KernelRequest& request, size_t first)
      : trans_b(request.attributes().get_int(Attr::TransB) != 0),
        zero_rows(request.attributes().get_int(Attr::ZeroRows) != 0),
        alpha(static_cast<float>(request.attributes().get_double(Attr::Alpha, 1))),
        fill(static_cast<float>(request.attributes().get_double(Attr::Value, 0))),
        q(request.input_slot(first)),
        k(request.input_slot(first + 1)),
        v(request.input_slot(first + 2)),
        bias(request, first + 3, scores_of(request, first)),
        keep(request, first + 4, scores_of(request, first)) {
    const Shape &of_q = request.in_shape(first), &of_v = request.in_shape(first + 2);
    matrices = product(of_q, 0, of_q.size() - 2);
    queries = of_q[of_q.size() - 2], inner = of_q.back();
    keys = of_v[of_v.size() - 2], columns = of_v.back();
    const int64_t most = std::max<int64_t>(1, kScoresHeld / std::max<int64_t>(1, scores() * 4));
    for (int64_t g = 1; g <= std::min(most, matrices); ++g)
      if (matrices % g == 0) together = g;
  }
  int64_t scores() const { return queries * keys; }
  bool is_served() const {
    return matrices * queries * inner * columns > 0 && together * scores() <= kCountMax;
  }
  int64_t score_bytes() const { return align_up(together * scores() * 4, 256); }
  ProductSpec spec(int64_t m, int64_t n, int64_t inner_terms, Arithmetic arithmetic) const {
    ProductSpec spec;
    spec.m = m, spec.n = n, spec.k = inner_terms;
    spec.batch = together;
    spec.stride_a = m * inner_terms, spec.stride_b = inner_terms * n, spec.stride_c = m * n;
    spec.arithmetic = arithmetic;
    return spec;
  }
};

// The products of one kernel. Where the library has none, the kernel is declined.
class Products {
 public:
  explicit Products(const KernelRequest& request) : request_(request) {}

  std::shared_ptr<LibraryOp> add(ProductSpec spec, bool transpose_a, bool transpose_b) {
    spec.transpose_a = transpose_a, spec.transpose_b = transpose_b;
    auto made = request_.device.make_product(spec);
    if (!made) {
      if (status_) status_ = fail(made.error());
      return nullptr;
    }
    workspace_ = std::max(workspace_, (*made)->workspace_bytes().value);
    return std::move(*made);
  }
  const Status& status() const { return status_; }
  int64_t workspace_bytes() const { return workspace_; }

 private:
  const KernelRequest& request_;
  Status status_;
  int64_t workspace_ = 0;
};

const std::byte* input_at(const Call& call, int slot, int64_t element) {
  return address(call.inputs[static_cast<size_t>(slot)]) + element * 4;
}
std::byte* output_at(const Call& call, int slot, int64_t element) {
  return address(call.outputs[static_cast<size_t>(slot)]) + element * 4;
}

// The softmax of the scores of matrices [first, first + plan.together), which lie at the workspace's begin.
Status weigh(const Plan& plan, const Call& call, LibraryOp& scores, int64_t first, std::byte* library) {
  WEFT_TRY_STATUS(call.device.run(scores, input_at(call, plan.q, first * plan.queries * plan.inner),
                                  input_at(call, plan.k, first * plan.keys * plan.inner), nullptr,
                                  call.workspace, library));
  const bool is_plain = plan.alpha == 1 && plan.bias.slot < 0 && plan.keep.slot < 0;
  for (int64_t i = 0; !is_plain && i < plan.together; ++i)
    WEFT_TRY_STATUS(call.launch(
        k_attention_scores, grid_of_moves(plan.scores()),
        {call.scratch<float>(i * plan.scores() * 4, plan.scores()),
         call.in<float>(plan.bias.slot, plan.bias.count), call.in<uint8_t>(plan.keep.slot, plan.keep.count),
         plan.bias.places(first + i), plan.keep.places(first + i), plan.alpha, plan.fill,
         static_cast<uint32_t>(plan.scores()), divider(plan.keys)}));
  const Lines lines = whole_lines(plan.together * plan.queries, plan.keys, 1);
  const auto all = call.scratch<float>(0, plan.together * plan.scores());
  WEFT_TRY_STATUS(
      call.launch(form_for(kSoftmaxForms, lines), grid_of(lines), {lines, {all.data, all.count}, all, 0}));
  if (!plan.zero_rows) return {};
  return call.launch(k_attention_slopes, grid_of_moves(all.count),
                     {all, {}, {}, 1, /*zero_rows=*/1, static_cast<uint32_t>(all.count), divider(plan.keys)});
}

KernelResult made_or_declined(const KernelRequest& request, const Products& products,
                              FunctionKernel::Function run, int64_t workspace) {
  if (products.status()) return request.make("attention by heads", std::move(run), workspace);
  if (products.status().error().code == ErrorCode::Unsupported) return request.decline();
  return fail(products.status().error());
}

KernelResult make_forward(const KernelRequest& request) {
  const Plan plan(request, 0);
  if (!plan.is_served()) return request.decline();
  const Arithmetic arithmetic = request.group.precision.compute;
  Products products(request);
  const auto scores =
      products.add(plan.spec(plan.queries, plan.keys, plan.inner, arithmetic), false, plan.trans_b);
  const auto result =
      products.add(plan.spec(plan.queries, plan.columns, plan.keys, arithmetic), false, false);
  const int y = request.output_slot(0);
  const int64_t library_at = plan.score_bytes();
  const auto run = [=](const Call& call) -> Status {
    std::byte* library = call.workspace + library_at;
    for (int64_t first = 0; first < plan.matrices; first += plan.together) {
      WEFT_TRY_STATUS(weigh(plan, call, *scores, first, library));
      WEFT_TRY_STATUS(call.device.run(*result, call.workspace,
                                      input_at(call, plan.v, first * plan.keys * plan.columns), nullptr,
                                      output_at(call, y, first * plan.queries * plan.columns), library));
    }
    return {};
  };
  return made_or_declined(request, products, run, library_at + products.workspace_bytes());
}

// From the gradient of the softmax to that of the scores as they were multiplied.
Status to_slopes(const Plan& plan, const Call& call, int64_t first) {
  const Lines lines = whole_lines(plan.together * plan.queries, plan.keys, 1);
  const int64_t count = plan.together * plan.scores();
  const auto weights = call.scratch<float>(0, count), slopes = call.scratch<float>(plan.score_bytes(), count);
  WEFT_TRY_STATUS(
      call.launch(form_for(kSoftmaxGradForms, lines), grid_of(lines),
                  {lines, {slopes.data, slopes.count}, {weights.data, weights.count}, slopes, 0}));
  const bool is_plain = plan.alpha == 1 && plan.keep.slot < 0;
  for (int64_t i = 0; !is_plain && i < plan.together; ++i)
    WEFT_TRY_STATUS(
        call.launch(k_attention_slopes, grid_of_moves(plan.scores()),
                    {call.scratch<float>(plan.score_bytes() + i * plan.scores() * 4, plan.scores()),
                     call.in<uint8_t>(plan.keep.slot, plan.keep.count), plan.keep.places(first + i),
                     plan.alpha, /*zero_rows=*/0, static_cast<uint32_t>(plan.scores()), divider(plan.keys)}));
  return {};
}

KernelResult make_backward(const KernelRequest& request) {
  const Plan plan(request, 1);
  if (!plan.is_served()) return request.decline();
  const Arithmetic arithmetic = request.group.precision.compute;
  const int64_t m = plan.queries, n = plan.keys, d = plan.inner, e = plan.columns;
  Products products(request);
  const auto scores = products.add(plan.spec(m, n, d, arithmetic), false, plan.trans_b);
  const auto of_values = products.add(plan.spec(n, e, m, arithmetic), true, false);
  const auto of_weights = products.add(plan.spec(m, n, e, arithmetic), false, true);
  const auto of_queries = products.add(plan.spec(m, d, n, arithmetic), false, !plan.trans_b);
  const auto of_keys = products.add(
      plan.trans_b ? plan.spec(n, d, m, arithmetic) : plan.spec(d, n, m, arithmetic), true, false);
  const int dy = request.input_slot(0), dq = request.output_slot(0), dk = request.output_slot(1),
            dv = request.output_slot(2);
  const int64_t library_at = 2 * plan.score_bytes();
  const auto run = [=](const Call& call) -> Status {
    std::byte *library = call.workspace + library_at, *slopes = call.workspace + plan.score_bytes();
    for (int64_t first = 0; first < plan.matrices; first += plan.together) {
      const std::byte *of_y = input_at(call, dy, first * m * e), *q = input_at(call, plan.q, first * m * d);
      WEFT_TRY_STATUS(weigh(plan, call, *scores, first, library));
      WEFT_TRY_STATUS(call.device.run(*of_values, call.workspace, of_y, nullptr,
                                      output_at(call, dv, first * n * e), library));
      WEFT_TRY_STATUS(call.device.run(*of_weights, of_y, input_at(call, plan.v, first * n * e), nullptr,
                                      slopes, library));
      WEFT_TRY_STATUS(to_slopes(plan, call, first));
      WEFT_TRY_STATUS(call.device.run(*of_queries, slopes, input_at(call, plan.k, first * n * d), nullptr,
                                      output_at(call, dq, first * m * d), library));
      WEFT_TRY_STATUS(call.device.run(*of_keys, plan.trans_b ? slopes : q, plan.trans_b ? q : slopes, nullptr,
                                      output_at(call, dk, first * n * d), library));
    }
    return {};
  };
  return made_or_declined(request, products, run, library_at + products.workspace_bytes());
}

}  // namespace

KernelResult make_attention(const KernelRequest& request) {
  const bool is_grad = request.op.kind == dag::OpKind::AttentionGrad;
  // Products in bfloat16 read what is rounded first.
  if (!request.is_f32(request.in(0)) || request.group.precision.compute == Arithmetic::BF16)
    return request.decline();
  return is_grad ? make_backward(request) : make_forward(request);
}

}  // namespace weft::peer::cuda
