// Attention of the domain com.microsoft, in terms of dag/onnx/attention.h.
#include "dag/onnx/attention.h"

#include "dag/onnx/microsoft.h"

namespace weft::onnx {
namespace {

Result<AttentionForm> attention_form(NodeContext& n, const Item& q, const Item& k, const Item& v) {
  AttentionForm form{.q = q, .k = k, .v = v, .scale = {}, .biases = {}, .allowed = {}, .softmax_dtype = {}};
  if (const double scale = n.float_attr("scale", 0); scale != 0) form.scale = scale;
  WEFT_TRY_STATUS(n.attribute_status());
  return form;
}

// 0 and 1 of integers, or truth values: [B, T] and [B, S, T] stretched to four dims, [B] as lengths.
Result<Item> allowed_keys(NodeContext& n, const Item& mask, int64_t batch, int64_t keys) {
  const Shape& shape = mask.shape();
  if (shape == Shape{batch} && mask.dtype() != DType::Bool) return length_mask(n, mask, keys);
  if ((shape.size() != 2 && shape.size() != 3) || shape.back() != keys || shape[0] != batch)
    return n.unsupported("a mask of shape " + to_string(shape) + " for a batch of " + std::to_string(batch) +
                         " and " + std::to_string(keys) + " keys");
  Shape wide{shape[0], 1, 1, shape.back()};
  if (shape.size() == 3) wide[2] = shape[1];
  WEFT_TRY(const Item four, n.reshape(mask, wide));
  return n.cast(four, DType::Bool);
}

// Adds mask_filter_value to the scores of masked keys.
Status add_key_mask(NodeContext& n, const Item& mask, int64_t batch, int64_t keys, AttentionForm& form) {
  WEFT_TRY(const Item allowed, allowed_keys(n, mask, batch, keys));
  const Item filter = n.like(form.q, n.float_attr("mask_filter_value", -10000));
  WEFT_TRY(Item bias, n.emit(OpKind::Where, {allowed, n.like(form.q, 0), filter}));
  form.biases.push_back(std::move(bias));
  return {};
}

Status add_causal(NodeContext& n, int64_t past, AttentionForm& form) {
  if (n.int_attr("unidirectional", 0) == 0) return {};
  WEFT_TRY(Item mask, causal_mask(n, form.q.shape()[2], form.k.shape()[2], past));
  form.allowed.push_back(std::move(mask));
  return {};
}

// Columns of a vector or a last dim that belong to q, k and v.
Result<Items> three_parts(NodeContext& n, const Item& x, const Ints& sizes) {
  if (x.rank() < 1) return n.invalid("a scalar does not hold q, k and v");
  Items parts;
  int64_t start = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > x.shape().back() - start)
      return n.invalid(to_string(x.spec) + " does not hold q, k and v");
    WEFT_TRY(Item part, n.slice(x, x.rank() - 1, start, size));
    parts.push_back(std::move(part));
    start += size;
  }
  if (start != x.shape().back()) return n.invalid(to_string(x.spec) + " does not hold q, k and v");
  return parts;
}

}  // namespace

Status lower_packed_attention(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY_STATUS(need_ints(n, {{"do_rotary", 0}, {"past_present_share_buffer", 0}}));
  WEFT_TRY_STATUS(need_absent(n, {{4, "past keys and values"}, {6, "the past's length"}}));
  const Item& x = n.in(0);
  if (x.rank() != 3 || n.in(1).rank() != 2) return n.invalid("its input or weights have another rank");
  const int64_t heads = n.int_attr("num_heads", 0);
  Ints sizes = n.ints_attr("qkv_hidden_sizes");
  if (sizes.empty()) sizes.assign(3, n.in(1).shape()[1] / 3);
  if (sizes.size() != 3) return n.invalid("qkv_hidden_sizes are not three");
  WEFT_TRY(Item packed, n.emit(OpKind::MatMul, {x, n.in(1)}));
  WEFT_TRY(packed, add_if_there(n, packed, 2));
  WEFT_TRY(Items parts, three_parts(n, packed, sizes));
  for (Item& part : parts) {
    WEFT_TRY(part, split_heads(n, part, heads));
  }
  WEFT_TRY(AttentionForm form, attention_form(n, parts[0], parts[1], parts[2]));
  if (n.has(5)) form.biases.push_back(n.in(5));
  if (n.has(3)) WEFT_TRY_STATUS(add_key_mask(n, n.in(3), x.shape()[0], x.shape()[1], form));
  WEFT_TRY_STATUS(add_causal(n, 0, form));
  WEFT_TRY(const AttentionResult result, attend(n, form));
  if (n.wants(1)) return n.unsupported("its present keys and values are read");
  return n.give(merge_heads(n, result.y));
}

namespace {

// Query, key and value of [B, S, heads * size], or of [B, heads, T, size] for keys and values of a cross
// attention, or packed in one or two operands of five dims.
Result<Items> unpack_heads(NodeContext& n, int64_t heads) {
  const Item& q = n.in(0);
  if (q.rank() == 5) {
    Items parts;
    for (int64_t i = 0; i < 3; ++i) {
      WEFT_TRY(Item part, n.slice(q, 3, i, 1));
      WEFT_TRY(part, n.reshape(part, {q.shape()[0], q.shape()[1], heads, q.shape()[4]}));
      WEFT_TRY(part, n.transpose(part, {0, 2, 1, 3}));
      parts.push_back(std::move(part));
    }
    return parts;
  }
  if (!n.has(1) || !n.has(2)) return n.unsupported("keys and values packed in one operand");
  Items parts;
  for (size_t i = 0; i < 3; ++i) {
    Item part = n.in(i);
    if (part.rank() != 4) {
      WEFT_TRY(part, split_heads(n, part, heads));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

// The bias of q, k and v, one after the other in one vector.
Status add_bias(NodeContext& n, const Item& bias, Items& parts) {
  Ints sizes;
  sizes.reserve(parts.size());
  for (const Item& part : parts) sizes.push_back(part.shape()[1] * part.shape()[3]);
  WEFT_TRY(const Items biases, three_parts(n, bias, sizes));
  for (size_t i = 0; i < 3; ++i) {
    WEFT_TRY(const Item wide, n.reshape(biases[i], {1, parts[i].shape()[1], 1, parts[i].shape()[3]}));
    WEFT_TRY(parts[i], n.emit(OpKind::Add, {parts[i], wide}));
  }
  return {};
}

}  // namespace

Status lower_multi_head_attention(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY_STATUS(need_absent(n, {{8, "the past's length"}, {9, "cache indirection"}}));
  const int64_t heads = n.int_attr("num_heads", 0);
  if (heads < 1) return n.invalid("num_heads is " + std::to_string(heads));
  WEFT_TRY(Items parts, unpack_heads(n, heads));
  if (n.has(3)) WEFT_TRY_STATUS(add_bias(n, n.in(3), parts));
  int64_t past = 0;
  for (const size_t i : {1u, 2u}) {
    if (!n.has(5 + i)) continue;
    past = n.in(5 + i).rank() == 4 ? n.in(5 + i).shape()[2] : 0;
    WEFT_TRY(parts[i], n.emit(OpKind::Concat, {n.in(5 + i), parts[i]}, {{Attr::Axis, int64_t{2}}}));
  }
  WEFT_TRY(AttentionForm form, attention_form(n, parts[0], parts[1], parts[2]));
  if (n.has(5)) form.biases.push_back(n.in(5));
  if (n.has(4)) WEFT_TRY_STATUS(add_key_mask(n, n.in(4), form.q.shape()[0], form.k.shape()[2], form));
  WEFT_TRY_STATUS(add_causal(n, past, form));
  WEFT_TRY(const AttentionResult result, attend(n, form));
  if (n.wants(1)) n.out(1, form.k);
  if (n.wants(2)) n.out(2, form.v);
  if (n.wants(3)) n.out(3, result.scores);
  return n.give(merge_heads(n, result.y));
}

namespace {

// Rows of the tables of angles for positions 0 to S - 1, or as given: [1 or B, 1, S, size / 2].
Result<Item> angles(NodeContext& n, const Item& table, const Item* positions, int64_t length) {
  if (table.rank() != 2) return n.invalid("angles " + to_string(table.spec) + " are not a matrix");
  if (!positions) {
    if (table.shape()[0] < length)
      return n.invalid("angles " + to_string(table.spec) + " are fewer than positions");
    WEFT_TRY(const Item rows, n.slice(table, 0, 0, length));
    return n.reshape(rows, {1, 1, length, table.shape()[1]});
  }
  WEFT_TRY(const Item rows, n.emit(OpKind::Gather, {table, *positions}, {{Attr::Axis, int64_t{0}}}));
  if (rows.rank() != 3)
    return n.invalid("positions " + to_string(positions->spec) + " are not [batch, length]");
  return n.reshape(rows, {rows.shape()[0], 1, rows.shape()[1], rows.shape()[2]});
}

Status rotate_q_and_k(NodeContext& n, Items& parts) {
  if (!n.has(7) || !n.has(8)) return n.invalid("do_rotary without tables of angles");
  const bool interleaved = n.int_attr("rotary_interleaved", 0) != 0;
  const Item* positions = n.has(9) ? &n.in(9) : nullptr;
  const int64_t length = parts[0].shape()[2];
  WEFT_TRY(const Item cos, angles(n, n.in(7), positions, length));
  WEFT_TRY(const Item sin, angles(n, n.in(8), positions, length));
  for (size_t i = 0; i < 2; ++i) {
    WEFT_TRY(parts[i], rotate(n, parts[i], cos, sin, interleaved));
  }
  return {};
}

// q, k, v in three operands or packed in the first.
Result<Items> grouped_heads(NodeContext& n, int64_t heads, int64_t groups) {
  Items flat;
  if (n.has(1) && n.has(2)) {
    flat = {n.in(0), n.in(1), n.in(2)};
  } else {
    if (n.in(0).rank() != 3 || n.in(0).shape()[2] % (heads + 2 * groups) != 0)
      return n.invalid(to_string(n.in(0).spec) + " does not hold q, k and v");
    const int64_t size = n.in(0).shape()[2] / (heads + 2 * groups);
    WEFT_TRY(flat, three_parts(n, n.in(0), {heads * size, groups * size, groups * size}));
  }
  for (size_t i = 0; i < 3; ++i) {
    WEFT_TRY(flat[i], split_heads(n, flat[i], i == 0 ? heads : groups));
  }
  return flat;
}

}  // namespace

Status lower_group_query_attention(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  WEFT_TRY_STATUS(need_ints(n, {{"local_window_size", -1}, {"smooth_softmax", 0}, {"qk_output", 0}}));
  WEFT_TRY_STATUS(need_absent(n, {{11, "head sinks"}, {12, "quantised keys"}, {13, "quantised values"}}));
  for (const size_t i : {3u, 4u})
    if (n.has(i) && n.in(i).spec.element_count() != 0)
      return n.unsupported("past keys and values; export the model without a cache (use_cache=False)");
  const int64_t heads = n.int_attr("num_heads", 0), groups = n.int_attr("kv_num_heads", 0);
  if (heads < 1 || groups < 1 || heads > 65536 || groups > 65536)
    return n.invalid("num_heads is " + std::to_string(heads) + ", kv_num_heads " + std::to_string(groups));
  WEFT_TRY(Items parts, grouped_heads(n, heads, groups));
  if (n.int_attr("do_rotary", 0) != 0) WEFT_TRY_STATUS(rotate_q_and_k(n, parts));
  WEFT_TRY(AttentionForm form, attention_form(n, parts[0], parts[1], parts[2]));
  form.softcap = n.float_attr("softcap", 0);
  if (n.has(10)) form.biases.push_back(n.in(10));
  WEFT_TRY(Item mask, causal_mask(n, form.q.shape()[2], form.k.shape()[2], 0));
  form.allowed.push_back(std::move(mask));
  WEFT_TRY(const AttentionResult result, attend(n, form));
  if (n.wants(1)) n.out(1, form.k);
  if (n.wants(2)) n.out(2, form.v);
  return n.give(merge_heads(n, result.y));
}

Status lower_rotary(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(4));
  WEFT_TRY_STATUS(need_ints(n, {{"is_packed_batching", 0}}));
  if (n.float_attr("scale", 1) != 1) return n.unsupported("a scale that is not 1");
  const bool interleaved = n.int_attr("interleaved", 0) != 0;
  const bool flat = n.in(0).rank() == 3;
  if (!flat && n.in(0).rank() != 4)
    return n.invalid("x " + to_string(n.in(0).spec) + " has neither 3 nor 4 dims");
  int64_t heads = n.int_attr("num_heads", 0);
  const int64_t dims = n.int_attr("rotary_embedding_dim", 0);
  if (flat && heads == 0 && dims == 0 && n.in(2).rank() == 2 && n.in(2).shape()[1] > 0)
    heads = n.in(0).shape()[2] / (2 * n.in(2).shape()[1]);
  Item x = n.in(0);
  if (flat) {
    WEFT_TRY(x, split_heads(n, x, heads));
  }
  const int64_t length = x.shape()[2];
  std::optional<Item> positions = n.in(1);
  if (n.in(1).shape() == Shape{1}) {
    WEFT_TRY(const int64_t offset, n.one_int(1, "position"));
    if (offset != 0) return n.unsupported("a first position of " + std::to_string(offset));
    positions.reset();
  }
  WEFT_TRY(const Item cos, angles(n, n.in(2), positions ? &*positions : nullptr, length));
  WEFT_TRY(const Item sin, angles(n, n.in(3), positions ? &*positions : nullptr, length));
  WEFT_TRY(Item y, rotate(n, x, cos, sin, interleaved));
  return n.give(flat ? merge_heads(n, y) : Result<Item>(std::move(y)));
}

}  // namespace weft::onnx
