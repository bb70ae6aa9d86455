#include "dag/onnx/decoder.h"

#include <algorithm>
#include <charconv>

namespace weft::onnx {
namespace {

using dag::Shape;
using dag::Tensor;
using dag::TensorSpec;
using Port = OnnxModel::Port;

// A dim that is a number; nothing for a symbol.
std::optional<int64_t> number_of(const std::string& dim) {
  int64_t number = 0;
  const auto [end, error] = std::from_chars(dim.data(), dim.data() + dim.size(), number);
  if (error != std::errc() || end != dim.data() + dim.size() || number < 0) return std::nullopt;
  return number;
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}
bool is_past(const Port& port) { return port.name.starts_with("past"); }
bool is_present(const Port& port) { return port.name.starts_with("present"); }
bool is_integer(const Port& port) { return port.dtype == "i64" || port.dtype == "i32"; }

// Whatever follows a dot or a slash, as exporters put scopes before names: "model/attention_mask".
std::string_view last_name(const Port& port) {
  const std::string_view name = port.name;
  const size_t at = name.find_last_of("/.");
  return at == std::string_view::npos || is_past(port) ? name : name.substr(at + 1);
}

enum class Meaning { Tokens, Ones, Zeros, Positions, False, Past };

std::optional<Meaning> meaning_of(const Port& port) {
  if (is_past(port)) return is_integer(port) ? Meaning::Zeros : Meaning::Past;
  const std::string_view name = last_name(port);
  if (name == "attention_mask") return Meaning::Ones;
  if (name == "token_type_ids") return Meaning::Zeros;
  if (name == "position_ids" || name == "cache_position") return Meaning::Positions;
  if (name == "use_cache_branch") return Meaning::False;
  if (is_integer(port) && (!port.has_shape || port.dims.size() == 1 || port.dims.size() == 2))
    return Meaning::Tokens;
  return std::nullopt;
}

tl::unexpected<Error> refuse(const char* what, const std::string& name, const std::string& why) {
  return fail(ErrorCode::Unsupported, std::string(what) + " '" + name.substr(0, 128) + "' " + why);
}

class PortFinder {
 public:
  PortFinder(const OnnxModel& model, std::optional<int64_t> length)
      : inputs_(model.inputs()), outputs_(model.outputs()), wanted_(length) {}

  Result<DecoderPorts> run() {
    WEFT_TRY_STATUS(find_tokens());
    WEFT_TRY_STATUS(find_length());
    for (const Port& port : inputs_)
      if (port.name != ports_.tokens) WEFT_TRY_STATUS(bind(port));
    WEFT_TRY_STATUS(find_logits());
    return std::move(ports_);
  }

 private:
  Status find_tokens() {
    std::vector<const Port*> found;
    for (const Port& port : inputs_)
      if (meaning_of(port) == Meaning::Tokens) found.push_back(&port);
    const bool is_open = found.size() > 1;
    if (is_open) std::erase_if(found, [](const Port* port) { return last_name(*port) != "input_ids"; });
    if (found.size() != 1)
      return fail(ErrorCode::Unsupported,
                  std::string("this is no language model: ") +
                      (is_open ? "several inputs could hold the tokens, and none is input_ids"
                               : "no integer input [batch, sequence] holds tokens"));
    tokens_ = found.front();
    ports_.tokens = tokens_->name;
    return {};
  }

  Status find_length() {
    std::optional<int64_t> fixed;
    if (tokens_->has_shape) fixed = number_of(tokens_->dims.back());
    if (tokens_->has_shape && tokens_->dims.size() == 2 && number_of(tokens_->dims[0]).value_or(1) != 1)
      return refuse("input", tokens_->name,
                    "is for a batch of " + tokens_->dims[0] + "; export it for one, or any");
    if (!fixed && !wanted_)
      return fail(ErrorCode::InvalidArgument, "the model takes sequences of any length: say the longest one");
    if (fixed && wanted_ && *fixed != *wanted_)
      return fail(ErrorCode::InvalidArgument, "the model was exported for " + std::to_string(*fixed) +
                                                  " positions, not for " + std::to_string(*wanted_));
    ports_.length = fixed ? *fixed : *wanted_;
    if (ports_.length < 1)
      return fail(ErrorCode::InvalidArgument,
                  "a sequence of " + std::to_string(ports_.length) + " positions");
    const bool is_flat = tokens_->has_shape && tokens_->dims.size() == 1;
    ports_.input_shapes[tokens_->name] = is_flat ? Shape{ports_.length} : Shape{1, ports_.length};
    return {};
  }

  Status bind(const Port& port) {
    const auto meaning = meaning_of(port);
    if (!meaning || *meaning == Meaning::Tokens)
      return refuse("input", port.name,
                    "is neither tokens nor known by its name: export the model with input_ids, "
                    "attention_mask and position_ids alone");
    const auto dtype = dag::parse_dtype(port.dtype);
    if (!dtype) return refuse("input", port.name, "is a " + port.dtype);
    WEFT_TRY(Shape shape, shape_of(port, *meaning));
    TensorSpec spec{*dtype, std::move(shape)};
    WEFT_TRY_STATUS(dag::checked_element_count(spec.shape));
    if (spec.bytes().value > (int64_t{1} << 30)) return refuse("input", port.name, "is larger than 1 GiB");
    ports_.bound_inputs[port.name] = value_of(spec, *meaning);
    return {};
  }
  Tensor value_of(const TensorSpec& spec, Meaning meaning) const {
    if (meaning != Meaning::Ones && meaning != Meaning::Positions) return Tensor(spec);
    std::vector<int64_t> values(static_cast<size_t>(spec.element_count()), 1);
    for (size_t i = 0; meaning == Meaning::Positions && i < values.size(); ++i)
      values[i] = static_cast<int64_t>(i) % ports_.length;
    if (dag::is_float(spec.dtype))
      return dag::from_doubles(spec, {std::vector<double>(values.begin(), values.end())});
    return dag::from_int64s(spec, values);
  }

  Result<Shape> shape_of(const Port& port, Meaning meaning) {
    if (meaning == Meaning::Past) return past_shape(port);
    if (meaning == Meaning::False || is_past(port)) return Shape(port.dims.size(), 1);
    const size_t rank = port.has_shape ? port.dims.size() : 2;
    if (rank > 2 && meaning == Meaning::Ones)
      return refuse("input", port.name,
                    "has " + std::to_string(rank) +
                        " dims: a mask for each pair of positions "
                        "is to be made inside the model");
    Shape shape(rank, 1);
    for (size_t d = 0; d + 1 < rank; ++d) shape[d] = number_of(port.dims[d]).value_or(1);
    if (rank > 0) shape.back() = ports_.length;
    const auto last = rank == 0 || !port.has_shape ? std::nullopt : number_of(port.dims.back());
    if (last && *last != ports_.length)
      return refuse("input", port.name,
                    "is for " + std::to_string(*last) + " positions, and the tokens are " +
                        std::to_string(ports_.length));
    return shape;
  }

  // The dim of positions: it has "past" in its symbol, or is the only symbol that is not the batch's.
  Result<Shape> past_shape(const Port& port) {
    ports_.has_past = true;
    Shape shape;
    std::vector<size_t> named, open;
    for (size_t d = 0; d < port.dims.size(); ++d) {
      shape.push_back(number_of(port.dims[d]).value_or(1));
      if (number_of(port.dims[d]) || is_batch(port.dims[d], d)) continue;
      open.push_back(d);
      if (contains(port.dims[d], "past")) named.push_back(d);
    }
    const std::vector<size_t>& found = named.empty() ? open : named;
    if (found.size() == 1 && open.size() == 1) {
      shape[found[0]] = 0;
      return shape;
    }
    return refuse("input", port.name,
                  open.empty() ? "holds a past of a fixed length: export the model for any"
                               : "has several dims of unknown size: which is the past's length?");
  }
  bool is_batch(const std::string& symbol, size_t d) const {
    if (contains(symbol, "past")) return false;
    const bool is_tokens = tokens_->has_shape && tokens_->dims.size() == 2 && tokens_->dims[0] == symbol;
    return contains(symbol, "batch") || (symbol == "?" ? d == 0 : is_tokens);
  }

  Status find_logits() {
    const Port* found = nullptr;
    for (const Port& port : outputs_) {
      const auto dtype = dag::parse_dtype(port.dtype);
      const bool fits = dtype && dag::is_float(*dtype) && !is_present(port);
      if (fits && (!found || last_name(port) == "logits")) found = &port;
    }
    if (!found) return fail(ErrorCode::Unsupported, "this is no language model: no output holds logits");
    ports_.logits = found->name;
    for (const Port& port : outputs_)
      if (port.name != ports_.logits) ports_.left_out.push_back(port.name);
    return {};
  }

  const std::vector<Port> inputs_, outputs_;
  std::optional<int64_t> wanted_;
  const Port* tokens_ = nullptr;
  DecoderPorts ports_;
};

}  // namespace

Result<DecoderPorts> find_decoder(const OnnxModel& model, std::optional<int64_t> length) {
  return PortFinder(model, length).run();
}

ImportOptions import_options(const DecoderPorts& ports, Evaluator evaluate) {
  ImportOptions options;
  options.evaluate = std::move(evaluate);
  options.batch = 1;
  options.input_shapes = ports.input_shapes;
  options.bound_inputs = ports.bound_inputs;
  options.left_out = ports.left_out;
  return options;
}

}  // namespace weft::onnx
