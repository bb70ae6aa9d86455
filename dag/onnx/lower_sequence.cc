// Sequences that exist only between nodes, as exporters write split and concatenate: which tensors they hold
// is known at import, so nothing of them is left.
#include <algorithm>

#include "dag/onnx/lowering.h"

namespace weft::onnx {
namespace {

Status give_sequence(NodeContext& n, Items items) {
  WEFT_TRY_STATUS(n.need(0));
  constexpr int64_t kBytesEach = 512;  // of an item, without its tensor
  if (const auto charged = n.state().emitter.charge(static_cast<int64_t>(items.size()) * kBytesEach);
      !charged)
    return n.refuse(charged.error().code, charged.error().message);
  Item sequence;
  sequence.sequence = std::make_shared<const Items>(std::move(items));
  return n.give(std::move(sequence));
}

Result<const Items*> sequence_of(NodeContext& n, size_t i) {
  WEFT_TRY_STATUS(n.need(i + 1));
  if (!n.in(i).sequence) return n.invalid("operand " + std::to_string(i) + " is no sequence");
  return n.in(i).sequence.get();
}
Status need_tensor(NodeContext& n, size_t i) {
  WEFT_TRY_STATUS(n.need(i + 1));
  if (n.in(i).sequence) return n.invalid("operand " + std::to_string(i) + " is a sequence");
  return {};
}

// Operand i as a place among `count`; negative ones count from the end.
Result<size_t> place(NodeContext& n, size_t i, int64_t count) {
  if (n.in(i).sequence) return n.invalid("its position is a sequence");
  WEFT_TRY(const int64_t given, n.one_int(i, "position"));
  if (given < -count || given >= count)
    return n.invalid("position " + std::to_string(given) + " in a sequence of " + std::to_string(count));
  return static_cast<size_t>(given < 0 ? given + count : given);
}

Status lower_construct(NodeContext& n) {
  Items items;
  for (size_t i = 0; i < n.count(); ++i) {
    WEFT_TRY_STATUS(need_tensor(n, i));
    items.push_back(n.in(i));
  }
  return give_sequence(n, std::move(items));
}
Status lower_empty(NodeContext& n) { return give_sequence(n, {}); }

Status lower_at(NodeContext& n) {
  WEFT_TRY(const Items* items, sequence_of(n, 0));
  WEFT_TRY_STATUS(n.need(2));
  WEFT_TRY(const size_t at, place(n, 1, static_cast<int64_t>(items->size())));
  return n.give((*items)[at]);
}

Status lower_insert(NodeContext& n) {
  WEFT_TRY(const Items* items, sequence_of(n, 0));
  WEFT_TRY_STATUS(need_tensor(n, 1));
  Items longer = *items;
  size_t at = longer.size();
  if (n.has(2)) {
    WEFT_TRY(const int64_t given, n.one_int(2, "position"));
    if (given != static_cast<int64_t>(longer.size())) {  // behind the last one is a place too
      WEFT_TRY(at, place(n, 2, static_cast<int64_t>(longer.size())));
    }
  }
  longer.insert(longer.begin() + static_cast<std::ptrdiff_t>(at), n.in(1));
  return give_sequence(n, std::move(longer));
}

Status lower_erase(NodeContext& n) {
  WEFT_TRY(const Items* items, sequence_of(n, 0));
  Items shorter = *items;
  if (shorter.empty()) return n.invalid("the sequence is empty");
  size_t at = shorter.size() - 1;
  if (n.has(1)) {
    WEFT_TRY(at, place(n, 1, static_cast<int64_t>(shorter.size())));
  }
  shorter.erase(shorter.begin() + static_cast<std::ptrdiff_t>(at));
  return give_sequence(n, std::move(shorter));
}

Status lower_length(NodeContext& n) {
  WEFT_TRY(const Items* items, sequence_of(n, 0));
  return n.give(n.scalar(DType::I64, static_cast<double>(items->size())));
}

// Sizes of the parts: of one each, all of one size but the last, or as listed.
Result<Ints> part_sizes(NodeContext& n, int64_t size) {
  int64_t each = 1;
  if (n.has(1)) {
    WEFT_TRY_STATUS(need_tensor(n, 1));
    WEFT_TRY(Ints sizes, n.ints(1, "split"));
    if (n.in(1).rank() > 0) return sizes;
    each = sizes[0];
  }
  if (each < 1 || size / each >= n.options().limits.unrolled_node_count_max)
    return n.invalid(std::to_string(size) + " elements do not split into parts of " + std::to_string(each));
  Ints sizes;
  for (int64_t start = 0; start < size; start += each) sizes.push_back(std::min(each, size - start));
  return sizes;
}

Status lower_split(NodeContext& n) {
  WEFT_TRY_STATUS(need_tensor(n, 0));
  const Item& x = n.in(0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, x.rank()));
  const bool drop_dim = !n.has(1) && n.int_attr("keepdims", 1) == 0;
  const int64_t size = x.shape()[static_cast<size_t>(axis)];
  WEFT_TRY(const Ints sizes, part_sizes(n, size));
  Items parts;
  int64_t start = 0;
  for (const int64_t count : sizes) {
    if (count < 0 || count > size - start)
      return n.invalid("split " + to_string(sizes) + " does not fit " + to_string(x.spec));
    WEFT_TRY(Item part, n.slice(x, axis, start, count));
    if (drop_dim) {
      Shape shape = part.shape();
      shape.erase(shape.begin() + axis);
      WEFT_TRY(part, n.reshape(part, std::move(shape)));
    }
    parts.push_back(std::move(part));
    start += count;
  }
  if (start != size) return n.invalid("split " + to_string(sizes) + " does not fit " + to_string(x.spec));
  return give_sequence(n, std::move(parts));
}

Status lower_concat(NodeContext& n) {
  WEFT_TRY(const Items* items, sequence_of(n, 0));
  if (items->empty()) return n.invalid("the sequence is empty");
  const bool new_axis = n.int_attr("new_axis", 0) != 0;
  const int64_t rank = items->front().rank() + (new_axis ? 1 : 0);
  WEFT_TRY(const int64_t axis, n.axis_attr("axis", 0, rank));
  Items parts = *items;
  for (Item& part : parts) {
    if (!new_axis) break;
    if (part.rank() + 1 != rank) return n.invalid("its tensors have different ranks");
    Shape shape = part.shape();
    shape.insert(shape.begin() + axis, 1);
    WEFT_TRY(part, n.reshape(part, std::move(shape)));
  }
  if (parts.size() == 1) return n.give(parts[0]);
  return n.give(n.emit(OpKind::Concat, std::move(parts), {{Attr::Axis, axis}}));
}

constexpr LowerRow sequence_row(std::string_view op_type, LowerFunction lower,
                                OperandSet gradient = kAllOperands, OperandSet shapes = kNoOperand) {
  return {op_type, lower, gradient, shapes, false, true};
}
constexpr LowerRow kSequenceRows[] = {
    sequence_row("SequenceConstruct", lower_construct),
    sequence_row("SequenceEmpty", lower_empty),
    sequence_row("SequenceAt", lower_at, operands(0), operands(1)),
    sequence_row("SequenceInsert", lower_insert, operands(0, 1), operands(2)),
    sequence_row("SequenceErase", lower_erase, operands(0), operands(1)),
    sequence_row("SequenceLength", lower_length, kNoOperand),
    sequence_row("SplitToSequence", lower_split, operands(0), operands(1)),
    sequence_row("ConcatFromSequence", lower_concat),
};

}  // namespace

std::span<const LowerRow> sequence_lowerings() { return kSequenceRows; }

}  // namespace weft::onnx
