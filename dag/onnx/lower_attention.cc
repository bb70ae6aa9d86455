// Attention and what stands around it in transformers.
#include "dag/onnx/attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {

Result<Item> split_heads(NodeContext& n, const Item& x, int64_t heads) {
  if (x.rank() != 3 || heads < 1 || x.shape()[2] % heads != 0)
    return n.invalid(to_string(x.spec) + " does not split into " + std::to_string(heads) + " heads");
  WEFT_TRY(const Item y, n.reshape(x, {x.shape()[0], x.shape()[1], heads, x.shape()[2] / heads}));
  return n.transpose(y, {0, 2, 1, 3});
}

Result<Item> merge_heads(NodeContext& n, const Item& x) {
  WEFT_TRY(const Item y, n.transpose(x, {0, 2, 1, 3}));
  return n.reshape(y, {y.shape()[0], y.shape()[1], y.shape()[2] * y.shape()[3]});
}

Result<Item> causal_mask(NodeContext& n, int64_t queries, int64_t keys, int64_t offset) {
  auto& made = n.state().causal_masks;  // every layer of a model asks for the same one
  const std::array<int64_t, 3> key{queries, keys, offset};
  if (const auto found = made.find(key); found != made.end()) return found->second;
  WEFT_TRY_STATUS(dag::checked_element_count({queries, keys}));
  if (queries * keys > n.options().limits.folded_value_bytes_max * 8)
    return n.unsupported("a causal mask of " + std::to_string(queries) + " x " + std::to_string(keys) +
                         " elements");
  Tensor mask({DType::Bool, {queries, keys}});
  const auto bits = mask.mutable_as<uint8_t>();
  for (int64_t i = 0; i < queries; ++i)
    for (int64_t j = 0; j < keys; ++j) bits[static_cast<size_t>(i * keys + j)] = j <= i + offset;
  WEFT_TRY(Item item, n.large_constant(std::move(mask)));
  return made.emplace(key, std::move(item)).first->second;
}

namespace {

Result<Item> positions(NodeContext& n, int64_t count, DType dtype) {
  std::vector<double> numbers(static_cast<size_t>(count));
  for (size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<double>(i);
  return n.large_constant(dag::from_doubles({dtype, {count}}, numbers));
}

// Scores of query heads that share keys: one product a head of the keys, all their queries below one another.
Result<Item> grouped_product(NodeContext& n, const Item& a, const Item& b, bool transposed) {
  const Shape& s = a.shape();
  const int64_t groups = b.shape()[1];
  WEFT_TRY(const Item rows, n.reshape(a, {s[0], groups, s[1] / groups * s[2], s[3]}));
  WEFT_TRY(const Item y, n.emit(OpKind::MatMul, {rows, b}, {{Attr::TransB, int64_t{transposed}}}));
  return n.reshape(y, {s[0], s[1], s[2], y.shape().back()});
}

Status check_shapes(NodeContext& n, const AttentionForm& form) {
  for (const Item* item : {&form.q, &form.k, &form.v})
    if (item->rank() != 4 || !is_float(item->dtype()))
      return n.invalid(to_string(item->spec) + " is not [batch, heads, length, size] of floats");
  const Shape &q = form.q.shape(), &k = form.k.shape(), &v = form.v.shape();
  if (q[0] != k[0] || q[3] != k[3] || k[0] != v[0] || k[1] != v[1] || k[2] != v[2] || k[1] < 1 ||
      q[1] % k[1] != 0)
    return n.invalid("queries " + to_string(form.q.spec) + ", keys " + to_string(form.k.spec) +
                     " and values " + to_string(form.v.spec) + " do not go together");
  return {};
}

Result<Item> softcapped(NodeContext& n, const Item& scores, double softcap) {
  if (softcap == 0) return scores;
  WEFT_TRY(Item y, n.emit(OpKind::Div, {scores, n.like(scores, softcap)}));
  WEFT_TRY(y, n.emit(OpKind::Tanh, {y}));
  return n.emit(OpKind::Mul, {y, n.like(y, softcap)});
}

Result<Item> biased(NodeContext& n, Item scores, const AttentionForm& form) {
  const Shape shape = scores.shape();
  for (const Item& bias : form.biases) {
    WEFT_TRY(scores, n.emit(OpKind::Add, {scores, bias}));
  }
  std::optional<Item> allowed;
  for (const Item& mask : form.allowed) {
    if (!allowed) {
      allowed = mask;
      continue;
    }
    WEFT_TRY(allowed, n.emit(OpKind::And, {*allowed, mask}));
  }
  if (allowed) {
    const Item never = n.like(scores, -std::numeric_limits<double>::infinity());
    WEFT_TRY(scores, n.emit(OpKind::Where, {*allowed, scores, never}));
  }
  if (scores.shape() != shape)
    return n.invalid("its mask does not broadcast to the scores' shape " + to_string(shape));
  return scores;
}

}  // namespace

Result<Item> length_mask(NodeContext& n, const Item& lengths, int64_t keys) {
  WEFT_TRY(const Item at, positions(n, keys, lengths.dtype()));
  WEFT_TRY(const Item column, n.reshape(lengths, {lengths.spec.element_count(), 1, 1, 1}));
  return n.emit(OpKind::Less, {at, column});
}

Result<AttentionResult> attend(NodeContext& n, const AttentionForm& form) {
  WEFT_TRY_STATUS(check_shapes(n, form));
  AttentionResult result;
  const auto size = static_cast<double>(form.q.shape()[3]);
  const double scale = form.scale ? *form.scale : 1 / std::sqrt(std::max(size, 1.0));
  WEFT_TRY(const Item q, n.emit(OpKind::Mul, {form.q, n.like(form.q, scale)}));
  WEFT_TRY(result.scores, grouped_product(n, q, form.k, true));
  WEFT_TRY(const Item capped, softcapped(n, result.scores, form.softcap));
  WEFT_TRY(result.biased, biased(n, capped, form));
  WEFT_TRY(Item p, n.cast(result.biased, form.softmax_dtype.value_or(q.dtype())));
  WEFT_TRY(p, n.emit(OpKind::Softmax, {p}, {{Attr::Axis, int64_t{3}}}));
  WEFT_TRY(result.probabilities, n.cast(p, q.dtype()));
  WEFT_TRY(result.y, grouped_product(n, result.probabilities, form.v, false));
  return result;
}

Result<Item> rotate(NodeContext& n, const Item& x, const Item& cos, const Item& sin, bool interleaved) {
  const int64_t last = x.rank() - 1;
  const int64_t size = x.shape().back();
  if (cos.rank() == 0 || cos.shape() != sin.shape() || cos.shape().back() > size / 2)
    return n.invalid("angles of shapes " + to_string(cos.shape()) + " and " + to_string(sin.shape()) +
                     " do not fit " + to_string(x.spec));
  const int64_t half = cos.shape().back();
  WEFT_TRY(const Item turned, n.slice(x, last, 0, 2 * half));
  WEFT_TRY(const Item a, n.slice(turned, last, 0, half, interleaved ? 2 : 1));
  WEFT_TRY(const Item b, n.slice(turned, last, interleaved ? 1 : half, half, interleaved ? 2 : 1));
  WEFT_TRY(const Item ca, n.emit(OpKind::Mul, {a, cos}));
  WEFT_TRY(const Item sb, n.emit(OpKind::Mul, {b, sin}));
  WEFT_TRY(const Item sa, n.emit(OpKind::Mul, {a, sin}));
  WEFT_TRY(const Item cb, n.emit(OpKind::Mul, {b, cos}));
  WEFT_TRY(Item real, n.emit(OpKind::Sub, {ca, sb}));
  WEFT_TRY(Item imaginary, n.emit(OpKind::Add, {sa, cb}));
  if (real.shape() != a.shape())
    return n.invalid("angles of shape " + to_string(cos.shape()) + " do not broadcast to " +
                     to_string(x.spec));
  if (interleaved) {
    Shape pair = a.shape();
    pair.push_back(1);
    WEFT_TRY(real, n.reshape(real, pair));
    WEFT_TRY(imaginary, n.reshape(imaginary, pair));
  }
  WEFT_TRY(Item y, n.emit(OpKind::Concat, {real, imaginary}, {{Attr::Axis, interleaved ? last + 1 : last}}));
  WEFT_TRY(y, n.reshape(y, turned.shape()));
  if (2 * half == size) return y;
  WEFT_TRY(const Item rest, n.slice(x, last, 2 * half, size - 2 * half));
  return n.emit(OpKind::Concat, {y, rest}, {{Attr::Axis, last}});
}

namespace {

// ---- Attention of opset 23 and 24 ----

struct Heads {
  bool flat = false;  // operands are [batch, length, heads * size]
  Item q, k, v;
};

Result<Heads> read_heads(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  Heads heads{.flat = n.in(0).rank() == 3, .q = n.in(0), .k = n.in(1), .v = n.in(2)};
  if (!heads.flat) return heads;
  const int64_t queries = n.int_attr("q_num_heads", 0);
  const int64_t keys = n.int_attr("kv_num_heads", 0);
  WEFT_TRY(heads.q, split_heads(n, n.in(0), queries));
  WEFT_TRY(heads.k, split_heads(n, n.in(1), keys));
  WEFT_TRY(heads.v, split_heads(n, n.in(2), keys));
  return heads;
}

// What was cached before goes in front.
Result<Item> with_past(NodeContext& n, size_t operand, const Item& now) {
  if (!n.has(operand)) return now;
  return n.emit(OpKind::Concat, {n.in(operand), now}, {{Attr::Axis, int64_t{2}}});
}

// A mask may be shorter than the keys: the rest is masked.
Result<Item> lengthened(NodeContext& n, const Item& mask, int64_t keys) {
  if (mask.rank() < 1) return n.invalid("its mask is a scalar");
  const int64_t missing = keys - mask.shape().back();
  if (missing <= 0) return mask;
  Shape shape = mask.shape();
  shape.back() = missing;
  const double fill = mask.dtype() == DType::Bool ? 0 : -std::numeric_limits<double>::infinity();
  WEFT_TRY(const Item rest, n.expand(n.like(mask, fill), shape));
  return n.emit(OpKind::Concat, {mask, rest}, {{Attr::Axis, mask.rank() - 1}});
}

Status add_masks(NodeContext& n, AttentionForm& form) {
  const int64_t queries = form.q.shape()[2], keys = form.k.shape()[2];
  if (n.has(3)) {
    WEFT_TRY(Item mask, lengthened(n, n.in(3), keys));
    (mask.dtype() == DType::Bool ? form.allowed : form.biases).push_back(std::move(mask));
  }
  const bool causal = n.int_attr("is_causal", 0) != 0;
  if (n.has(6)) {
    WEFT_TRY(Item valid, length_mask(n, n.in(6), keys));
    form.allowed.push_back(std::move(valid));
  }
  if (!causal) return {};
  if (!n.has(6) || n.has(4)) {
    WEFT_TRY(Item mask, causal_mask(n, queries, keys, n.has(4) ? n.in(4).shape()[2] : 0));
    form.allowed.push_back(std::move(mask));
    return {};
  }
  // A cache that is filled to nonpad_kv_seqlen: the last query stands at its last element.
  WEFT_TRY(const Item at, positions(n, keys, DType::I64));
  WEFT_TRY(Item rows, positions(n, queries, DType::I64));
  WEFT_TRY(rows, n.reshape(rows, {queries, 1}));
  WEFT_TRY(Item filled, n.cast(n.in(6), DType::I64));
  WEFT_TRY(filled, n.reshape(filled, {filled.spec.element_count(), 1, 1, 1}));
  WEFT_TRY(filled, n.emit(OpKind::Sub, {filled, n.scalar(DType::I64, static_cast<double>(queries))}));
  WEFT_TRY(const Item last, n.emit(OpKind::Add, {filled, rows}));
  WEFT_TRY(Item mask, n.emit(OpKind::LessEqual, {at, last}));
  form.allowed.push_back(std::move(mask));
  return {};
}

Status give_scores(NodeContext& n, const AttentionForm& form, const AttentionResult& result) {
  const int64_t mode = n.int_attr("qk_matmul_output_mode", 0);
  if (!n.wants(3)) return {};
  const bool plain = form.softcap == 0;
  if (mode == 0 || (mode == 1 && plain && form.biases.empty() && form.allowed.empty())) {
    n.out(3, result.scores);
  } else if (mode == 2 && plain) {
    n.out(3, result.biased);
  } else if (mode == 3) {
    n.out(3, result.probabilities);
  } else {
    return n.unsupported(
        "qk_matmul_output_mode " + std::to_string(mode) +
        " with a mask or softcap: releases of ONNX disagree on their order; use mode 0 or 3");
  }
  return {};
}

Status lower_attention(NodeContext& n) {
  for (const char* later : {"left_window_size", "right_window_size"})
    if (n.int_attr(later, -1) != -1)
      return n.unsupported(std::string(later) + "; mask the window with attn_mask");
  WEFT_TRY(const Heads heads, read_heads(n));
  AttentionForm form{
      .q = heads.q, .k = {}, .v = {}, .scale = {}, .biases = {}, .allowed = {}, .softmax_dtype = {}};
  WEFT_TRY(form.k, with_past(n, 4, heads.k));
  WEFT_TRY(form.v, with_past(n, 5, heads.v));
  if (n.has_attr("scale")) form.scale = n.float_attr("scale", 1);
  form.softcap = n.float_attr("softcap", 0);
  if (!(form.softcap >= 0)) return n.invalid("softcap is negative");
  if (n.has_attr("softmax_precision")) {
    const int64_t given = n.int_attr("softmax_precision", 0);
    const auto dtype = dtype_from_onnx(static_cast<int32_t>(std::clamp<int64_t>(given, -1, 1000)));
    if (!dtype || !is_float(*dtype)) return n.invalid("softmax_precision is no float type");
    form.softmax_dtype = *dtype;
  }
  WEFT_TRY_STATUS(n.attribute_status());
  WEFT_TRY_STATUS(check_shapes(n, form));
  WEFT_TRY_STATUS(add_masks(n, form));
  WEFT_TRY(AttentionResult result, attend(n, form));
  WEFT_TRY_STATUS(give_scores(n, form, result));
  if (n.wants(1)) n.out(1, form.k);
  if (n.wants(2)) n.out(2, form.v);
  return n.give(heads.flat ? merge_heads(n, result.y) : Result<Item>(std::move(result.y)));
}

// ---- RotaryEmbedding ----

Status lower_rotary(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(3));
  const Item& x = n.in(0);
  const bool interleaved = n.int_attr("interleaved", 0) != 0;
  const int64_t dims = n.int_attr("rotary_embedding_dim", 0);
  const int64_t heads = n.int_attr("num_heads", 0);
  if (x.rank() != 3 && x.rank() != 4)
    return n.invalid("x " + to_string(x.spec) + " has neither 3 nor 4 dims");
  Item cos = n.in(1), sin = n.in(2);
  if (n.has(3)) {
    WEFT_TRY(cos, n.emit(OpKind::Gather, {cos, n.in(3)}, {{Attr::Axis, int64_t{0}}}));
    WEFT_TRY(sin, n.emit(OpKind::Gather, {sin, n.in(3)}, {{Attr::Axis, int64_t{0}}}));
  }
  if (cos.rank() != 3 || sin.shape() != cos.shape() || (dims != 0 && 2 * cos.shape()[2] != dims))
    return n.invalid("cos " + to_string(cos.spec) + " and sin " + to_string(sin.spec) +
                     " are not [batch, length, " + (dims != 0 ? std::to_string(dims / 2) : "size / 2") + "]");
  // The heads' dim is the second of four, and comes third out of three.
  Shape angles = cos.shape();
  angles.insert(angles.begin() + (x.rank() == 4 ? 1 : 2), 1);
  WEFT_TRY(cos, n.reshape(cos, angles));
  WEFT_TRY(sin, n.reshape(sin, angles));
  if (x.rank() == 4) return n.give(rotate(n, x, cos, sin, interleaved));
  if (heads < 1 || x.shape()[2] % heads != 0) return n.invalid("num_heads is " + std::to_string(heads));
  WEFT_TRY(Item y, n.reshape(x, {x.shape()[0], x.shape()[1], heads, x.shape()[2] / heads}));
  WEFT_TRY(y, rotate(n, y, cos, sin, interleaved));
  return n.give(n.reshape(y, x.shape()));
}

constexpr LowerRow kAttentionRows[] = {
    {"Attention", lower_attention, kAllOperands & ~operands(6)},
    // Tables of angles are not trained.
    {"RotaryEmbedding", lower_rotary, operands(0)},
};

}  // namespace

std::span<const LowerRow> attention_lowerings() { return kAttentionRows; }

}  // namespace weft::onnx
