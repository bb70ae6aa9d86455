#include "dag/onnx/fewer_bits.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>

#include "dag/onnx/edit.h"
#include "dag/onnx/export.h"
#include "dag/onnx/node_questions.h"
#include "dag/onnx/stored_nodes.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

using dag::DType;
using dag::Tensor;
using dag::TensorSpec;
using Form = OnnxModel::Structure::Form;

float float_of(const pb::NodeProto& node, std::string_view name, float otherwise) {
  const auto* attribute = find_attribute(node, name);
  return attribute != nullptr ? attribute->f() : otherwise;
}
bool exchanges(const pb::NodeProto& node) {
  if (!is_op(&node, "Transpose")) return false;
  const auto* perm = find_attribute(node, "perm");
  return perm == nullptr || (perm->ints_size() == 2 && perm->ints(0) == 1);
}
void set_int(pb::NodeProto& node, const char* name, int64_t value) {
  auto& attribute = *node.add_attribute();
  attribute.set_name(name);
  attribute.set_type(pb::AttributeProto::INT);
  attribute.set_i(value);
}

// What is made of one matrix.
struct Part {
  std::string source;   // its initializer
  bool turned = false;  // the source is [K, N], and rows are those of its columns
  int64_t rows = 0, columns = 0;
  dag::Rounding how;
  TensorSpec spec;
};

// The matrix's numbers, row by row as they are rounded.
void each_row(const Part& part, std::span<const float> source,
              const std::function<void(std::span<const float>)>& take) {
  const auto rows = static_cast<size_t>(part.rows), columns = static_cast<size_t>(part.columns);
  std::vector<float> turned(part.turned ? columns : 0);
  for (size_t r = 0; r < rows; ++r) {
    for (size_t c = 0; c < turned.size(); ++c) turned[c] = source[c * rows + r];
    take(part.turned ? std::span<const float>(turned) : source.subspan(r * columns, columns));
  }
}

class Rewriting {
 public:
  Rewriting(const OnnxModel& model, const FewerBits& how)
      : model_(model),
        how_(how),
        held_(model.structure()),
        made_(std::make_shared<OnnxModel::Structure>(model.structure())) {
    for (const auto& node : graph().node()) {
      for (int i = 0; i < node.input_size(); ++i) readers_[node.input(i)].emplace_back(&node, i);
      for (const auto& attribute : node.attribute()) {
        if (attribute.has_g()) add_names_read(attribute.g(), read_in_bodies_);
        for (const auto& body : attribute.graphs()) add_names_read(body, read_in_bodies_);
      }
    }
    for (const auto& output : graph().output()) returned_.insert(output.name());
  }

  // The model so, with zeros for what is made.
  Result<InFewerBits> run() {
    choose();
    std::vector<pb::NodeProto> nodes;
    for (const auto& node : graph().node()) rewrite(node, nodes);
    pb::GraphProto& graph = *made_->proto.mutable_graph();
    graph.clear_node();
    for (pb::NodeProto& node : nodes) *graph.add_node() = std::move(node);
    std::set<std::string> sources;
    for (const auto& [name, uses] : chosen_) sources.insert(name);
    remove_initializers(*made_, sources);
    for (const auto& [name, part] : parts_)
      WEFT_TRY_STATUS(add_initializer(*made_, name, part.spec, model_.has_external_data()));
    for (const std::string& matrix : tables_) add_shape_of_table(graph, matrix);
    if (how_.bits < 16) import_domain();
    exchange_weights(turned_matrices(), *made_);
    for (const auto& [name, part] : parts_) written_.after += static_cast<uint64_t>(part.spec.bytes().value);
    return InFewerBits{OnnxModel(made_), written_};
  }

  // What is made, for who writes it. REQUIRES: run() returned without an error.
  TrainedTensors tensors() const {
    TrainedTensors tensors;
    for (const auto& [name, part] : parts_) tensors.specs[name] = part.spec;
    tensors.read = [this](const std::string& name, const ByteSink& sink) -> Status {
      WEFT_TRY(const Tensor tensor, make(parts_.at(name)));
      return sink(tensor.bytes());
    };
    return tensors;
  }

 private:
  const pb::GraphProto& graph() const { return model_.structure().proto.graph(); }
  const TensorSpec& spec(const std::string& name) const { return model_.weights().find(name)->second.spec(); }

  // How a node reads a matrix: nothing where it stays.
  enum class Use : uint8_t { Product, Turned, Rows };
  std::optional<Use> use_of(const pb::NodeProto& node, int operand) const {
    if (!is_standard(node)) return std::nullopt;
    if (node.op_type() == "MatMul" && operand == 1) return Use::Product;
    if (node.op_type() == "Gather" && operand == 0 && int_of(node, "axis", 0) == 0) return Use::Rows;
    if (node.op_type() != "Gemm" || operand != 1 || int_of(node, "transA", 0) != 0 ||
        float_of(node, "alpha", 1) != 1 || float_of(node, "beta", 1) != 1)
      return std::nullopt;
    return int_of(node, "transB", 0) != 0 ? Use::Turned : Use::Product;
  }
  static Use turned(Use use) { return use == Use::Product ? Use::Turned : Use::Product; }

  // In which order those who read a matrix take its numbers.
  struct Uses {
    bool products_of_columns = false, products_of_rows = false, rows = false;
  };

  // Why the matrix stays as it is, as far as who reads this value tells: all are to be products or take rows,
  // or behind a Transpose products alone, in whole blocks. Empty: it need not.
  std::string refuse(const std::string& matrix, const std::string& value, Uses& uses) const {
    const bool is_turned = value != matrix;
    if (returned_.contains(value)) return "the model returns it";
    if (read_in_bodies_.contains(value)) return "a subgraph reads it";
    const auto found = readers_.find(value);
    if (found == readers_.end()) return is_turned ? "" : "nothing reads it";
    for (const auto& [node, operand] : found->second) {
      if (how_.bits >= 16) continue;
      if (!is_turned && exchanges(*node)) {
        if (std::string why = refuse(matrix, node->output(0), uses); !why.empty()) return why;
        continue;
      }
      const auto use = use_of(*node, operand);
      if (!use || (is_turned && *use == Use::Rows)) return node->op_type() + " reads it";
      const bool is_product = *use != Use::Rows && (is_turned ? turned(*use) : *use) == Use::Product;
      const int64_t inner = spec(matrix).shape[is_product ? 0 : 1];
      if (block_of(inner) == 0) return "16 does not divide " + std::to_string(inner);
      (is_product ? uses.products_of_columns : *use == Use::Rows ? uses.rows : uses.products_of_rows) = true;
    }
    return {};
  }
  std::string why_it_stays(const std::string& name, Uses& uses) const {
    const TensorSpec& matrix = spec(name);
    if (matrix.dtype != DType::F32 && !(is_half(matrix.dtype) && how_.bits < 16))
      return "it is " + to_string(matrix);
    if (std::string why = refuse(name, name, uses); !why.empty()) return why;
    // Its blocks would lie in both directions.
    if (uses.products_of_columns && (uses.products_of_rows || uses.rows))
      return "it is read as it is and transposed";
    if (name.find('\n') != std::string::npos) return "its name has a line feed";
    for (const std::string& made : names_of(name))
      if (held_.is_taken(made)) return "there is a '" + made.substr(0, 128) + "' already";
    return {};
  }

  std::set<std::string> turned_matrices() const {
    std::set<std::string> names;
    for (const auto& [name, uses] : chosen_)
      if (uses.products_of_columns) names.insert(name);
    return names;
  }

  int64_t block_of(int64_t inner) const {
    for (int64_t block = how_.block; block >= 16; block /= 2)
      if (inner % block == 0) return block;
    return 0;
  }

  void choose() {
    for (const auto& proto : graph().initializer()) {
      const TensorSpec& matrix = spec(proto.name());
      if (matrix.rank() != 2 || !is_float(matrix.dtype) || !how_.takes(proto.name())) continue;
      Uses uses;
      const std::string why = why_it_stays(proto.name(), uses);
      if (!why.empty()) {
        written_.passed.push_back("'" + proto.name().substr(0, 128) + "': " + why);
        continue;
      }
      chosen_[proto.name()] = uses;
      ++written_.matrices;
      written_.before += static_cast<uint64_t>(matrix.bytes().value);
    }
  }

  // Of what is made of a matrix: numbers and scales, or halves; and numbers of a product as a table has them.
  std::string numbers_of(const std::string& source) const {
    return source + (how_.bits == 4 ? "_Q4" : "_Q8");
  }
  static std::string scales_of(const std::string& source) { return source + "_scales"; }
  static std::string halves_of(const std::string& source) { return name_of_half(source, DType::BF16); }
  std::string table_of(const std::string& source) const { return numbers_of(source) + "/table"; }
  std::string shape_of(const std::string& source) const { return table_of(source) + "/shape"; }
  std::vector<std::string> names_of(const std::string& source) const {
    if (how_.bits >= 16) return {halves_of(source)};
    return {numbers_of(source), scales_of(source), table_of(source), shape_of(source)};
  }

  void quantise(const std::string& source) {
    const Uses& uses = chosen_.at(source);
    const TensorSpec& matrix = spec(source);
    const bool turned = uses.products_of_columns;
    const int64_t rows = matrix.shape[turned ? 1 : 0], columns = matrix.shape[turned ? 0 : 1];
    const int64_t block = block_of(columns), bytes = block * how_.bits / 8;
    Part part{.source = source,
              .turned = turned,
              .rows = rows,
              .columns = columns,
              .how = {.bits = how_.bits, .block = block, .scale = matrix.dtype},
              .spec = {}};
    const bool is_table_alone = uses.rows && !uses.products_of_rows;
    part.spec = {DType::U8, is_table_alone ? dag::Shape{rows, columns / block * bytes}
                                           : dag::Shape{rows, columns / block, bytes}};
    parts_.emplace(numbers_of(source), part);
    part.how.part = dag::Rounding::Part::Scales;
    part.spec = {matrix.dtype, {rows, columns / block}};
    parts_.emplace(scales_of(source), part);
  }

  // The chosen matrix that an operand is, and whether through a Transpose.
  std::optional<std::pair<std::string, bool>> matrix_at(const pb::NodeProto& node, int operand) const {
    const std::string& name = node.input(operand);
    if (chosen_.contains(name)) return std::pair(name, false);
    if (const auto at = transposed_.find(name); at != transposed_.end()) return std::pair(at->second, true);
    return std::nullopt;
  }

  void rewrite(const pb::NodeProto& node, std::vector<pb::NodeProto>& nodes) {
    if (how_.bits >= 16) return widen_before(node, nodes);
    if (exchanges(node) && chosen_.contains(node.input(0))) {
      transposed_[node.output(0)] = node.input(0);  // nothing else reads it
      return;
    }
    for (int i = 0; i < std::min(node.input_size(), 2); ++i) {
      const auto matrix = matrix_at(node, i);
      const auto use = matrix ? use_of(node, i) : std::nullopt;
      if (!use) continue;
      if (*use == Use::Rows) return add_rows(node, matrix->first, nodes);
      return add_product(node, matrix->first, nodes);
    }
    nodes.push_back(node);
  }

  void add_product(const pb::NodeProto& node, const std::string& matrix, std::vector<pb::NodeProto>& nodes) {
    quantise(matrix);
    const Part& part = parts_.at(numbers_of(matrix));
    const bool has_bias = node.op_type() == "Gemm" && node.input_size() > 2 && !node.input(2).empty();
    pb::NodeProto& product = nodes.emplace_back();
    product.set_name(node.name());
    product.set_domain("com.microsoft");
    product.set_op_type("MatMulNBits");
    for (const std::string& input : {node.input(0), numbers_of(matrix), scales_of(matrix)})
      product.add_input(input);
    product.add_output(has_bias ? node.output(0) + "/product" : node.output(0));
    set_int(product, "K", part.columns);
    set_int(product, "N", part.rows);
    set_int(product, "bits", how_.bits);
    set_int(product, "block_size", part.how.block);
    if (!has_bias) return;
    pb::NodeProto& add = nodes.emplace_back();
    if (!node.name().empty()) add.set_name(node.name() + "/bias");
    add.set_op_type("Add");
    add.add_input(node.output(0) + "/product");
    add.add_input(node.input(2));
    add.add_output(node.output(0));
  }

  void add_rows(const pb::NodeProto& node, const std::string& matrix, std::vector<pb::NodeProto>& nodes) {
    quantise(matrix);
    const std::string numbers = numbers_of(matrix);
    const bool is_multiplied = chosen_.at(matrix).products_of_rows;
    if (is_multiplied && tables_.insert(matrix).second) {
      pb::NodeProto& table = nodes.emplace_back();
      table.set_op_type("Reshape");
      table.add_input(numbers);
      table.add_input(shape_of(matrix));
      table.add_output(table_of(matrix));
    }
    pb::NodeProto& rows = nodes.emplace_back();
    rows.set_name(node.name());
    rows.set_domain("com.microsoft");
    rows.set_op_type("GatherBlockQuantized");
    for (const std::string& input :
         {is_multiplied ? table_of(matrix) : numbers, node.input(1), scales_of(matrix)})
      rows.add_input(input);
    rows.add_output(node.output(0));
    set_int(rows, "gather_axis", 0);
    set_int(rows, "quantize_axis", 1);
    set_int(rows, "bits", how_.bits);
    set_int(rows, "block_size", parts_.at(numbers).how.block);
  }

  // A Cast to float32 where a matrix is first read.
  void widen_before(const pb::NodeProto& node, std::vector<pb::NodeProto>& nodes) {
    for (const std::string& input : node.input()) {
      if (!chosen_.contains(input) || parts_.contains(halves_of(input))) continue;
      const dag::Shape& shape = spec(input).shape;
      parts_.emplace(halves_of(input), Part{.source = input,
                                            .rows = shape[0],
                                            .columns = shape[1],
                                            .how = {.part = dag::Rounding::Part::Halves},
                                            .spec = {DType::BF16, shape}});
      pb::NodeProto& cast = nodes.emplace_back();
      cast.set_op_type("Cast");
      cast.add_input(halves_of(input));
      cast.add_output(input);
      set_int(cast, "to", pb::TensorProto::FLOAT);
    }
    nodes.push_back(node);
  }

  void add_shape_of_table(pb::GraphProto& graph, const std::string& matrix) {
    const std::vector<int64_t> shape{0, -1};  // its rows, and all that one has
    pb::TensorProto& proto = *graph.add_initializer();
    proto.set_name(shape_of(matrix));
    proto.set_data_type(pb::TensorProto::INT64);
    proto.add_dims(2);
    for (const int64_t dim : shape) proto.add_int64_data(dim);
    made_->forms.push_back(Form::Typed);
    made_->weights[proto.name()] = dag::make_tensor({2}, std::span<const int64_t>(shape));
  }

  void import_domain() {
    for (const auto& entry : made_->proto.opset_import())
      if (entry.domain() == "com.microsoft") return;
    auto& entry = *made_->proto.add_opset_import();
    entry.set_domain("com.microsoft");
    entry.set_version(1);
  }

  Result<Tensor> source_of(const Part& part) const {
    WEFT_TRY(Tensor tensor, model_.read_whole(part.source));
    return dag::is_half(tensor.dtype()) ? widen_half(tensor) : tensor;
  }

  Result<Tensor> make(const Part& part) const {
    WEFT_TRY(const Tensor source, source_of(part));
    const auto rows = [&](const auto& take) { each_row(part, source.as<float>(), take); };
    Tensor made(part.spec);
    std::span<std::byte> to = made.mutable_bytes();
    rows([&](std::span<const float> row) {
      const auto size = static_cast<size_t>(dag::rounded_bytes(part.how, row.size()).value());
      dag::round_numbers(part.how, row, to.first(size));
      to = to.subspan(size);
    });
    if (how_.on_made) how_.on_made({part.source, part.turned, part.how, rows, made});
    return made;
  }

  const OnnxModel& model_;
  const FewerBits& how_;
  const HeldTensors held_;
  std::shared_ptr<OnnxModel::Structure> made_;
  std::map<std::string, std::vector<std::pair<const pb::NodeProto*, int>>> readers_;  // by value
  std::set<std::string> returned_, read_in_bodies_;
  std::map<std::string, Uses> chosen_;
  std::set<std::string> tables_;                   // chosen matrices that have a Reshape
  std::map<std::string, std::string> transposed_;  // of chosen matrices, by value
  std::map<std::string, Part> parts_;              // by the initializer that it becomes
  WrittenBits written_;
};

}  // namespace

Result<WrittenBits> write_in_fewer_bits(const OnnxModel& model, const FewerBits& how,
                                        const std::filesystem::path& output) {
  Rewriting rewriting(model, how);
  WEFT_TRY(InFewerBits made, rewriting.run());
  WEFT_TRY_STATUS(write_model(made.model, rewriting.tensors(), output));
  return std::move(made.bits);
}

Result<InFewerBits> outline_in_fewer_bits(const OnnxModel& model, const FewerBits& how) {
  return Rewriting(model, how).run();
}

}  // namespace weft::onnx
