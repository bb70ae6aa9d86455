// If, Loop and Scan, whose bodies are written out: as often as what is known at import says.
#include <algorithm>
#include <limits>

#include "dag/onnx/lowering.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

constexpr char kFixIt[] =
    " depends on data that is only known when the model runs; export the model with fixed shapes and a fixed "
    "number of iterations";

Result<Items> run_body(NodeContext& n, const pb::GraphProto& body, Items inputs) {
  auto results = n.state().lower_body(body, std::move(inputs));
  if (!results) return n.refuse(results.error().code, results.error().message);
  return results;
}

// Refuses before the first of many iterations what could not end within the budget.
Status check_budget(NodeContext& n, const pb::GraphProto& body, int64_t iterations) {
  const int64_t left = n.state().unrolled_left;
  if (iterations <= left / (body.node_size() + 1)) return {};
  return n.refuse(ErrorCode::ResourceExhausted,
                  "its " + std::to_string(iterations) + " iterations of " + std::to_string(body.node_size()) +
                      " nodes would become more than the " + std::to_string(left) +
                      " nodes that are left for control flow");
}

Status need_tensor(NodeContext& n, const Item& item) {
  if (item.sequence) return n.unsupported("a result of its body is a sequence of tensors");
  return {};
}

// ---- If ----

using Running = std::vector<std::pair<std::string, Item>>;
bool same_values(const Running& a, const Running& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && x.second.id == y.second.id;
  });
}

// Both branches, and of each result the one that the condition chooses.
Status choose_at_run_time(NodeContext& n, const pb::GraphProto& yes, const pb::GraphProto& no) {
  const Running before = n.state().running;
  WEFT_TRY(const Items a, run_body(n, yes, {}));
  WEFT_TRY(const Items b, run_body(n, no, {}));
  if (!same_values(before, n.state().running))
    return n.unsupported("a branch changes running statistics, and its condition" + std::string(kFixIt));
  if (a.size() != b.size() || a.size() < n.output_count())
    return n.invalid("its branches have other results than it");
  WEFT_TRY(const Item condition, n.reshape(n.in(0), {}));
  for (size_t i = 0; i < n.output_count(); ++i) {
    WEFT_TRY_STATUS(need_tensor(n, a[i]));
    WEFT_TRY_STATUS(need_tensor(n, b[i]));
    if (a[i].spec != b[i].spec)
      return n.unsupported("its branches give " + to_string(a[i].spec) + " and " + to_string(b[i].spec) +
                           ", and its condition" + kFixIt);
    WEFT_TRY(Item chosen, n.emit(OpKind::Where, {condition, a[i], b[i]}));
    n.out(i, std::move(chosen));
  }
  return {};
}

Status lower_if(NodeContext& n) {
  WEFT_TRY_STATUS(n.need(1));
  const pb::GraphProto* yes = n.graph_attr("then_branch");
  const pb::GraphProto* no = n.graph_attr("else_branch");
  WEFT_TRY_STATUS(n.attribute_status());
  if (!yes || !no) return n.invalid("a branch is missing");
  const Item& condition = n.in(0);
  if (condition.dtype() != DType::Bool || condition.spec.element_count() != 1)
    return n.invalid("its condition " + to_string(condition.spec) + " is not a single truth value");
  if (!condition.known) return choose_at_run_time(n, *yes, *no);
  WEFT_TRY(Items results, run_body(n, to_doubles(*condition.known)[0] != 0 ? *yes : *no, {}));
  if (results.size() < n.output_count()) return n.invalid("its branch has fewer results than it");
  for (size_t i = 0; i < n.output_count(); ++i) n.out(i, std::move(results[i]));
  return {};
}

// ---- results of all iterations, one after the other along a new dim ----

Result<Item> stack(NodeContext& n, Items parts, int64_t axis, bool backwards) {
  if (backwards) std::reverse(parts.begin(), parts.end());
  for (Item& part : parts) {
    WEFT_TRY_STATUS(need_tensor(n, part));
    Shape shape = part.shape();
    shape.insert(shape.begin() + axis, 1);
    WEFT_TRY(part, n.reshape(part, std::move(shape)));
  }
  if (parts.size() == 1) return std::move(parts[0]);
  return n.emit(OpKind::Concat, std::move(parts), {{Attr::Axis, axis}});
}

// Of no iteration: what the body declares.
Result<Item> stack_of_none(NodeContext& n, const pb::ValueInfoProto& declared) {
  const auto& type = declared.type().tensor_type();
  const auto dtype = dtype_from_onnx(type.elem_type());
  Shape shape{0};
  for (const auto& dim : type.shape().dim()) shape.push_back(dim.has_dim_value() ? dim.dim_value() : -1);
  if (!dtype || !type.has_shape() || !dag::checked_element_count(shape))
    return n.unsupported("it has no iteration, and nothing says which shape its result has then");
  return n.constant(Tensor({*dtype, shape}));
}

// ---- Loop ----

// Whether an iteration may answer otherwise than the one before: no, when it hands on what it was given.
bool condition_varies(const pb::GraphProto& body) {
  if (body.output_size() == 0 || body.input_size() < 2) return true;
  std::string name = body.output(0).name();
  for (int i = body.node_size(); i-- > 0;) {
    const auto& node = body.node(i);
    if (std::find(node.output().begin(), node.output().end(), name) == node.output().end()) continue;
    if (node.op_type() == "Constant") return false;
    if (node.op_type() != "Identity" || node.input_size() != 1) return true;
    name = node.input(0);
  }
  return false;
}

struct LoopForm {
  const pb::GraphProto* body = nullptr;
  int64_t trips = std::numeric_limits<int64_t>::max();
  Item condition;
  size_t carried = 0, scanned = 0;
};

Result<LoopForm> read_loop(NodeContext& n) {
  LoopForm form;
  form.body = n.graph_attr("body");
  WEFT_TRY_STATUS(n.attribute_status());
  if (!form.body) return n.invalid("its body is missing");
  form.carried = n.count() < 2 ? 0 : n.count() - 2;
  if (form.body->input_size() != static_cast<int>(form.carried) + 2 ||
      form.body->output_size() < static_cast<int>(form.carried) + 1)
    return n.invalid("its body does not take and return the " + std::to_string(form.carried) +
                     " values that the loop carries");
  form.scanned = static_cast<size_t>(form.body->output_size()) - 1 - form.carried;
  if (n.output_count() > form.carried + form.scanned) return n.invalid("its body has fewer results than it");
  if (n.has(0)) {
    if (!n.in(0).known) return n.unsupported(std::string("its trip count") + kFixIt);
    WEFT_TRY(form.trips, n.one_int(0, "trip count"));
  }
  form.condition = n.scalar(DType::Bool, 1);
  if (n.has(1)) form.condition = n.in(1);
  if (!n.has(0) && !n.has(1) && !condition_varies(*form.body)) return n.invalid("it never ends");
  return form;
}

Result<bool> goes_on(NodeContext& n, const Item& condition) {
  if (condition.spec.element_count() != 1) return n.invalid("its condition is not a single truth value");
  if (!condition.known) return n.unsupported(std::string("its condition") + kFixIt);
  return to_doubles(*condition.known)[0] != 0;
}

Status lower_loop(NodeContext& n) {
  WEFT_TRY(LoopForm form, read_loop(n));
  Items carried;
  for (size_t i = 2; i < n.count(); ++i) {
    if (!n.has(i)) return n.unsupported("operand " + std::to_string(i) + " is left out");
    carried.push_back(n.in(i));
  }
  WEFT_TRY(bool more, goes_on(n, form.condition));
  const bool is_open = condition_varies(*form.body);
  if (more && form.trips > 0 && !is_open) WEFT_TRY_STATUS(check_budget(n, *form.body, form.trips));
  const int64_t open_trips = n.options().limits.open_loop_node_count_max / (form.body->node_size() + 1);
  std::vector<Items> scanned(form.scanned);
  for (int64_t trip = 0; more && trip < form.trips; ++trip) {
    if (is_open && trip > open_trips)
      return n.refuse(ErrorCode::ResourceExhausted,
                      "after " + std::to_string(trip) + " iterations its condition still asks for another");
    Items inputs{n.constant(dag::make_tensor(Shape{}, std::span<const int64_t>(&trip, 1))), form.condition};
    inputs.insert(inputs.end(), carried.begin(), carried.end());
    WEFT_TRY(Items results, run_body(n, *form.body, std::move(inputs)));
    for (size_t i = 0; i < form.carried; ++i) carried[i] = std::move(results[1 + i]);
    for (size_t i = 0; i < form.scanned; ++i) scanned[i].push_back(std::move(results[1 + form.carried + i]));
    form.condition = std::move(results[0]);
    if (trip + 1 == form.trips) break;  // nobody asks any more
    WEFT_TRY(more, goes_on(n, form.condition));
  }
  for (size_t i = 0; i < n.output_count(); ++i) {
    if (i < form.carried) {
      n.out(i, carried[i]);
    } else if (n.wants(i)) {
      Items& parts = scanned[i - form.carried];
      WEFT_TRY(Item all, parts.empty() ? stack_of_none(n, form.body->output(static_cast<int>(i) + 1))
                                       : stack(n, std::move(parts), 0, false));
      n.out(i, std::move(all));
    }
  }
  return {};
}

// ---- Scan ----

struct ScanForm {
  const pb::GraphProto* body = nullptr;
  size_t states = 0, inputs = 0, outputs = 0;
  Ints input_axes, input_directions, output_axes, output_directions;
};

Result<Ints> one_each(NodeContext& n, const char* name, size_t count, int64_t low, int64_t high) {
  Ints values = n.ints_attr(name);
  if (values.empty()) values.assign(count, 0);
  if (values.size() != count)
    return n.invalid(std::string(name) + " has " + std::to_string(values.size()) + " entries");
  for (const int64_t value : values)
    if (value < low || value > high) return n.invalid(std::string(name) + " has " + std::to_string(value));
  return values;
}

// `first`: the operand where states begin.
Result<ScanForm> read_scan(NodeContext& n, size_t first) {
  ScanForm form;
  form.body = n.graph_attr("body");
  const int64_t inputs = n.int_attr("num_scan_inputs", 0);
  WEFT_TRY_STATUS(n.attribute_status());
  if (!form.body) return n.invalid("its body is missing");
  if (inputs < 1 || n.count() < first || inputs > static_cast<int64_t>(n.count() - first))
    return n.invalid("num_scan_inputs is " + std::to_string(inputs));
  form.inputs = static_cast<size_t>(inputs);
  form.states = n.count() - first - form.inputs;
  const auto results = static_cast<size_t>(form.body->output_size());
  if (results < form.states || n.output_count() > results)
    return n.invalid("its body has fewer results than it");
  form.outputs = results - form.states;
  const int64_t rank = n.options().limits.rank_max;
  WEFT_TRY(form.input_axes, one_each(n, "scan_input_axes", form.inputs, -rank, rank));
  WEFT_TRY(form.input_directions,
           one_each(n, first == 0 ? "scan_input_directions" : "directions", form.inputs, 0, 1));
  WEFT_TRY(form.output_axes, one_each(n, "scan_output_axes", form.outputs, -rank, rank));
  WEFT_TRY(form.output_directions, one_each(n, "scan_output_directions", form.outputs, 0, 1));
  return form;
}

// One pass over sequences that agree in length: final states, then stacked results.
Result<Items> scan(NodeContext& n, const ScanForm& form, Items states, const Items& sequences) {
  int64_t length = -1;
  Ints axes = form.input_axes;
  for (size_t i = 0; i < form.inputs; ++i) {
    const auto axis = dag::normalise_axis(axes[i], sequences[i].rank());
    if (!axis) return n.invalid(axis.error().message);
    axes[i] = *axis;
    const int64_t size = sequences[i].shape()[static_cast<size_t>(*axis)];
    if (length >= 0 && size != length) return n.invalid("its sequences have different lengths");
    length = size;
  }
  WEFT_TRY_STATUS(check_budget(n, *form.body, length));
  std::vector<Items> scanned(form.outputs);
  for (int64_t step = 0; step < length; ++step) {
    Items inputs = states;
    for (size_t i = 0; i < form.inputs; ++i) {
      const int64_t at = form.input_directions[i] != 0 ? length - 1 - step : step;
      WEFT_TRY(const Item part, n.slice(sequences[i], axes[i], at, 1));
      Shape shape = part.shape();
      shape.erase(shape.begin() + axes[i]);
      WEFT_TRY(Item element, n.reshape(part, std::move(shape)));
      inputs.push_back(std::move(element));
    }
    WEFT_TRY(Items results, run_body(n, *form.body, std::move(inputs)));
    for (size_t i = 0; i < form.states; ++i) {
      WEFT_TRY_STATUS(need_tensor(n, results[i]));
      states[i] = std::move(results[i]);
    }
    for (size_t i = 0; i < form.outputs; ++i) scanned[i].push_back(std::move(results[form.states + i]));
  }
  for (size_t i = 0; i < form.outputs; ++i) {
    if (scanned[i].empty()) {
      WEFT_TRY(Item none, stack_of_none(n, form.body->output(static_cast<int>(form.states + i))));
      states.push_back(std::move(none));
      continue;
    }
    const auto axis = dag::normalise_axis(form.output_axes[i], scanned[i].front().rank() + 1);
    if (!axis) return n.invalid(axis.error().message);
    WEFT_TRY(Item all, stack(n, std::move(scanned[i]), *axis, form.output_directions[i] != 0));
    states.push_back(std::move(all));
  }
  return states;
}

// Before opset 9 every operand has a leading batch dim, and each of its elements is scanned by itself.
Status lower_batched_scan(NodeContext& n) {
  if (n.has(0)) return n.unsupported("sequences of different lengths");
  WEFT_TRY(const ScanForm form, read_scan(n, 1));
  std::vector<Items> results(n.output_count());
  const int64_t batch = n.in(1).rank() > 0 ? n.in(1).shape()[0] : 0;
  if (batch < 1) return n.invalid("its operands have no batch");
  for (int64_t b = 0; b < batch; ++b) {
    Items elements;
    for (size_t i = 1; i < n.count(); ++i) {
      if (n.in(i).rank() < 1 || n.in(i).shape()[0] != batch)
        return n.invalid("its operands have different batches");
      WEFT_TRY(const Item part, n.slice(n.in(i), 0, b, 1));
      WEFT_TRY(Item element, n.reshape(part, Shape(part.shape().begin() + 1, part.shape().end())));
      elements.push_back(std::move(element));
    }
    const auto cut = elements.begin() + static_cast<std::ptrdiff_t>(form.states);
    WEFT_TRY(Items passed, scan(n, form, Items(elements.begin(), cut), Items(cut, elements.end())));
    for (size_t i = 0; i < results.size(); ++i) results[i].push_back(std::move(passed[i]));
  }
  for (size_t i = 0; i < results.size(); ++i) {
    WEFT_TRY(Item all, stack(n, std::move(results[i]), 0, false));
    n.out(i, std::move(all));
  }
  return {};
}

Status lower_scan(NodeContext& n) {
  if (n.opset() < 9) return lower_batched_scan(n);
  WEFT_TRY_STATUS(n.need(std::max<size_t>(1, n.count())));
  WEFT_TRY(const ScanForm form, read_scan(n, 0));
  Items states, sequences;
  for (size_t i = 0; i < n.count(); ++i) (i < form.states ? states : sequences).push_back(n.in(i));
  WEFT_TRY(Items results, scan(n, form, std::move(states), sequences));
  for (size_t i = 0; i < n.output_count(); ++i) n.out(i, std::move(results[i]));
  return {};
}

constexpr LowerRow kControlRows[] = {
    {"If", lower_if, kNoOperand, operands(0), true},
    {"Loop", lower_loop, kAllOperands & ~operands(0, 1), operands(0, 1), true, true},
    {"Scan", lower_scan, kAllOperands, kNoOperand, true},
};

}  // namespace

std::span<const LowerRow> control_lowerings() { return kControlRows; }

}  // namespace weft::onnx
