// LSTM, GRU and RNN: each direction as one op over the sequence, or step by step where the op does not know
// the form.
#include <algorithm>
#include <cctype>

#include "dag/onnx/recurrent.h"

namespace weft::onnx {
namespace {

// ---- attributes ----

// What functions have that the node gives no numbers for.
Activation with_defaults(const std::string& name) {
  Activation made{{}, 0, 0};
  for (const char letter : name)
    made.name += static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  if (made.name == "leakyrelu") made.alpha = 0.01;
  if (made.name == "thresholdedrelu" || made.name == "elu" || made.name == "affine") made.alpha = 1;
  if (made.name == "scaledtanh") made.alpha = made.beta = 1;
  if (made.name == "hardsigmoid") made.alpha = 0.2, made.beta = 0.5;
  return made;
}

bool takes_alpha(const std::string& name) {
  for (const char* with : {"affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu"})
    if (name == with) return true;
  return false;
}
bool takes_beta(const std::string& name) {
  return name == "affine" || name == "scaledtanh" || name == "hardsigmoid";
}

// The functions of all directions, one after another. Numbers go to those that take one, in order.
Result<std::vector<Activation>> read_activations(NodeContext& n, const std::vector<std::string>& standard,
                                                 int64_t directions) {
  std::vector<std::string> names = n.strings_attr("activations");
  if (names.empty())
    for (int64_t d = 0; d < directions; ++d) names.insert(names.end(), standard.begin(), standard.end());
  if (names.size() != standard.size() * static_cast<size_t>(directions))
    return n.invalid("it has " + std::to_string(names.size()) + " activations, want " +
                     std::to_string(standard.size()) + " for each direction");
  const std::vector<double> alphas = n.floats_attr("activation_alpha"),
                            betas = n.floats_attr("activation_beta");
  std::vector<Activation> all;
  size_t alpha = 0, beta = 0;
  for (const std::string& name : names) {
    Activation made = with_defaults(name.substr(0, 32));
    if (takes_alpha(made.name) && alpha < alphas.size()) made.alpha = alphas[alpha++];
    if (takes_beta(made.name) && beta < betas.size()) made.beta = betas[beta++];
    all.push_back(std::move(made));
  }
  return all;
}

Result<RecurrentForm> read_form(NodeContext& n, int64_t gates) {
  WEFT_TRY_STATUS(n.need(3));
  RecurrentForm form;
  form.gates = gates;
  const std::string direction = n.string_attr("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    return n.invalid("direction is '" + direction.substr(0, 32) + "'");
  form.directions = direction == "bidirectional" ? 2 : 1;
  form.reverse_first = direction == "reverse";
  form.batch_first = n.int_attr("layout", 0) != 0;
  form.linear_before_reset = n.int_attr("linear_before_reset", 0) != 0;
  form.input_forget = n.int_attr("input_forget", 0) != 0;
  if (n.has_attr("clip")) form.clip = n.float_attr("clip", 0);
  if (form.clip && *form.clip < 0) return n.invalid("its clip is negative");
  const Item &x = n.in(0), &w = n.in(1), &r = n.in(2);
  if (x.rank() != 3 || w.rank() != 3 || r.rank() != 3) return n.invalid("x, w and r are not of rank 3");
  form.steps = x.shape()[form.batch_first ? 1 : 0];
  form.batch = x.shape()[form.batch_first ? 0 : 1];
  form.hidden = r.shape()[2];
  if (form.hidden > dag::kElementCountMax / gates || n.int_attr("hidden_size", form.hidden) != form.hidden)
    return n.invalid("its hidden_size does not fit r " + to_string(r.spec));
  const int64_t rows = gates * form.hidden;
  if (w.shape() != Shape{form.directions, rows, x.shape()[2]} ||
      r.shape() != Shape{form.directions, rows, form.hidden})
    return n.invalid("w " + to_string(w.spec) + " and r " + to_string(r.spec) + " do not fit x " +
                     to_string(x.spec));
  return form;
}

// ---- operands ----

bool all_equal(const Item& item, double value) {
  if (!item.known) return false;
  const auto values = to_doubles(*item.known);
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == value; });
}

Status read_lengths(NodeContext& n, RecurrentForm& form) {
  if (!n.has(4)) return {};
  if (n.in(4).shape() != Shape{form.batch})
    return n.invalid("sequence_lens " + to_string(n.in(4).spec) + " is not one number a row of the batch");
  if (!all_equal(n.in(4), static_cast<double>(form.steps))) form.lengths = n.in(4);
  return {};
}

// Direction `d` of an operand that has them along `axis`: that dim drops out.
Result<Item> of_direction(NodeContext& n, const Item& item, int64_t axis, int64_t d) {
  WEFT_TRY(const Item part, n.slice(item, axis, d, 1));
  Shape shape = part.shape();
  shape.erase(shape.begin() + axis);
  return n.reshape(part, std::move(shape));
}

Result<std::optional<Item>> initial_state(NodeContext& n, size_t i, const RecurrentForm& form, int64_t d) {
  if (!n.has(i) || all_equal(n.in(i), 0)) return std::nullopt;
  const Shape want = form.batch_first ? Shape{form.batch, form.directions, form.hidden}
                                      : Shape{form.directions, form.batch, form.hidden};
  if (n.in(i).shape() != want)
    return n.invalid("initial state " + to_string(n.in(i).spec) + " is not of shape " + to_string(want));
  WEFT_TRY(Item state, of_direction(n, n.in(i), form.batch_first ? 1 : 0, d));
  return std::optional<Item>(std::move(state));
}

// What is added to the input's part, and what stays within GRU's reset.
struct Biases {
  Item outer;
  std::optional<Item> reset;
};
Result<Biases> read_biases(NodeContext& n, const RecurrentForm& form, int64_t d) {
  const int64_t rows = form.gates * form.hidden;
  if (n.in(3).shape() != Shape{form.directions, 2 * rows})
    return n.invalid("b " + to_string(n.in(3).spec) + " does not fit r " + to_string(n.in(2).spec));
  WEFT_TRY(const Item both, of_direction(n, n.in(3), 0, d));
  WEFT_TRY(const Item input, n.slice(both, 0, 0, rows));
  WEFT_TRY(const Item recurrent, n.slice(both, 0, rows, rows));
  Biases biases;
  if (form.gates != 3 || !form.linear_before_reset) {
    WEFT_TRY(biases.outer, n.emit(OpKind::Add, {input, recurrent}));
    return biases;
  }
  const int64_t open = 2 * form.hidden;
  WEFT_TRY(const Item input_open, n.slice(input, 0, 0, open));
  WEFT_TRY(const Item recurrent_open, n.slice(recurrent, 0, 0, open));
  WEFT_TRY(const Item sum, n.emit(OpKind::Add, {input_open, recurrent_open}));
  WEFT_TRY(const Item input_hidden, n.slice(input, 0, open, form.hidden));
  WEFT_TRY(biases.outer, n.emit(OpKind::Concat, {sum, input_hidden}, {{Attr::Axis, int64_t{0}}}));
  WEFT_TRY(biases.reset, n.slice(recurrent, 0, open, form.hidden));
  return biases;
}

Result<RecurrentDirection> read_direction(NodeContext& n, const RecurrentForm& form, int64_t d,
                                          const Item& x) {
  RecurrentDirection made;
  made.reverse = form.reverse_first || d == 1;
  WEFT_TRY(const Item w, of_direction(n, n.in(1), 0, d));
  WEFT_TRY(made.r, of_direction(n, n.in(2), 0, d));
  WEFT_TRY(made.x, n.emit(OpKind::MatMul, {x, w}, {{Attr::TransA, int64_t{0}}, {Attr::TransB, int64_t{1}}}));
  if (n.has(3)) {
    WEFT_TRY(const Biases biases, read_biases(n, form, d));
    made.reset_bias = biases.reset;
    WEFT_TRY(made.x, n.emit(OpKind::Add, {made.x, biases.outer}));
  }
  WEFT_TRY(made.h0, initial_state(n, 5, form, d));
  if (form.gates != 4) return made;
  WEFT_TRY(made.c0, initial_state(n, 6, form, d));
  if (!n.has(7)) return made;
  if (n.in(7).shape() != Shape{form.directions, 3 * form.hidden})
    return n.invalid("p " + to_string(n.in(7).spec) + " does not fit r " + to_string(n.in(2).spec));
  WEFT_TRY(made.peepholes, of_direction(n, n.in(7), 0, d));
  return made;
}

// ---- ops ----

bool is_standard(const RecurrentForm& form, const RecurrentDirection& direction) {
  const auto& functions = direction.functions;
  if (form.clip || form.input_forget || direction.peepholes) return false;
  if (form.gates == 1) return functions[0].name == "tanh" || functions[0].name == "relu";
  return functions[0].name == "sigmoid" && functions[1].name == "tanh" && functions.back().name == "tanh";
}

Item or_absent(const std::optional<Item>& item) { return item ? *item : Item{}; }

Result<RecurrentResults> run_direction(NodeContext& n, const RecurrentForm& form,
                                       const RecurrentDirection& direction) {
  if (!is_standard(form, direction)) return unroll(n, form, direction);
  Attributes attributes{{Attr::Reverse, int64_t{direction.reverse}}};
  const Item h0 = or_absent(direction.h0), lengths = or_absent(form.lengths);
  if (form.gates == 4) {
    WEFT_TRY(const Items out,
             n.emit_all(OpKind::Lstm, {direction.x, direction.r, h0, or_absent(direction.c0), lengths},
                        std::move(attributes)));
    return RecurrentResults{out[0], out[1], out[2]};
  }
  if (form.gates == 3) {
    attributes.set(Attr::LinearBeforeReset, int64_t{form.linear_before_reset});
    WEFT_TRY(const Items out,
             n.emit_all(OpKind::Gru, {direction.x, direction.r, h0, or_absent(direction.reset_bias), lengths},
                        std::move(attributes)));
    return RecurrentResults{out[0], out[1], std::nullopt};
  }
  attributes.set(Attr::Activation, direction.functions[0].name);
  WEFT_TRY(const Items out,
           n.emit_all(OpKind::Rnn, {direction.x, direction.r, h0, lengths}, std::move(attributes)));
  return RecurrentResults{out[0], out[1], std::nullopt};
}

// ---- results ----

// One item a direction, each given a dim of 1 at `axis`, side by side along it.
Result<Item> side_by_side(NodeContext& n, const Items& parts, int64_t axis) {
  Items wide;
  for (const Item& part : parts) {
    Shape shape = part.shape();
    shape.insert(shape.begin() + axis, 1);
    WEFT_TRY(Item item, n.reshape(part, std::move(shape)));
    wide.push_back(std::move(item));
  }
  if (wide.size() == 1) return wide[0];
  return n.emit(OpKind::Concat, std::move(wide), {{Attr::Axis, axis}});
}

Status give_results(NodeContext& n, const RecurrentForm& form, const std::vector<RecurrentResults>& results) {
  Items y, h, c;
  for (const RecurrentResults& result : results) {
    y.push_back(result.y);
    h.push_back(result.h);
    if (result.c) c.push_back(*result.c);
  }
  if (n.wants(0)) {
    WEFT_TRY(Item all, side_by_side(n, y, 1));  // [T,D,B,H]
    if (form.batch_first) {
      WEFT_TRY(all, n.transpose(all, {2, 0, 1, 3}));
    }
    n.out(0, std::move(all));
  }
  if (n.wants(1)) {
    WEFT_TRY(Item last, side_by_side(n, h, form.batch_first ? 1 : 0));
    n.out(1, std::move(last));
  }
  if (n.wants(2) && !c.empty()) {
    WEFT_TRY(Item last, side_by_side(n, c, form.batch_first ? 1 : 0));
    n.out(2, std::move(last));
  }
  return {};
}

Status lower_recurrent(NodeContext& n) {
  const bool lstm = n.op_type() == "LSTM", gru = n.op_type() == "GRU";
  WEFT_TRY(RecurrentForm form, read_form(n, lstm ? 4 : gru ? 3 : 1));
  WEFT_TRY_STATUS(read_lengths(n, form));
  const std::vector<std::string> standard = lstm  ? std::vector<std::string>{"Sigmoid", "Tanh", "Tanh"}
                                            : gru ? std::vector<std::string>{"Sigmoid", "Tanh"}
                                                  : std::vector<std::string>{"Tanh"};
  WEFT_TRY(const auto functions, read_activations(n, standard, form.directions));
  Item x = n.in(0);
  if (form.batch_first) {
    WEFT_TRY(x, n.transpose(x, {1, 0, 2}));
  }
  std::vector<RecurrentResults> results;
  for (int64_t d = 0; d < form.directions; ++d) {
    WEFT_TRY(RecurrentDirection direction, read_direction(n, form, d, x));
    const auto first = functions.begin() + d * static_cast<int64_t>(standard.size());
    direction.functions.assign(first, first + static_cast<int64_t>(standard.size()));
    WEFT_TRY(RecurrentResults result, run_direction(n, form, direction));
    results.push_back(std::move(result));
  }
  return give_results(n, form, results);
}

constexpr LowerRow kRecurrentRows[] = {
    {"LSTM", lower_recurrent, operands(0, 1, 2, 3, 5, 6, 7)},
    {"GRU", lower_recurrent, operands(0, 1, 2, 3, 5)},
    {"RNN", lower_recurrent, operands(0, 1, 2, 3, 5)},
};

}  // namespace

std::span<const LowerRow> recurrent_lowerings() { return kRecurrentRows; }

}  // namespace weft::onnx
