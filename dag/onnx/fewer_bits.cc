#include "dag/onnx/fewer_bits.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "dag/onnx/export.h"
#include "dag/onnx/parse.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {

using dag::DType;
using dag::Tensor;
using dag::TensorSpec;
using Form = OnnxModel::Structure::Form;

bool is_standard(const pb::NodeProto& node) { return node.domain().empty() || node.domain() == "ai.onnx"; }
const pb::AttributeProto* attribute_of(const pb::NodeProto& node, std::string_view name) {
  for (const auto& attribute : node.attribute())
    if (attribute.name() == name) return &attribute;
  return nullptr;
}
int64_t int_of(const pb::NodeProto& node, std::string_view name, int64_t otherwise) {
  const auto* attribute = attribute_of(node, name);
  return attribute != nullptr ? attribute->i() : otherwise;
}
float float_of(const pb::NodeProto& node, std::string_view name, float otherwise) {
  const auto* attribute = attribute_of(node, name);
  return attribute != nullptr ? attribute->f() : otherwise;
}
bool exchanges(const pb::NodeProto& node) {
  if (!is_standard(node) || node.op_type() != "Transpose") return false;
  const auto* perm = attribute_of(node, "perm");
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
  std::string source;  // its initializer
  enum class What : uint8_t { Numbers, Scales, Brain } what = What::Numbers;
  bool turned = false;  // the source is [K, N], and rows are those of its columns
  int64_t rows = 0, columns = 0, block = 1;
  TensorSpec spec;
};

class Rewriting {
 public:
  Rewriting(const OnnxModel& model, const FewerBits& how)
      : model_(model), how_(how), made_(std::make_shared<OnnxModel::Structure>(model.structure())) {
    for (const auto& node : graph().node())
      for (int i = 0; i < node.input_size(); ++i) readers_[node.input(i)].emplace_back(&node, i);
    for (const auto& output : graph().output()) returned_.insert(output.name());
  }

  Result<WrittenBits> run(const std::filesystem::path& output) {
    choose();
    std::vector<pb::NodeProto> nodes;
    for (const auto& node : graph().node()) rewrite(node, nodes);
    pb::GraphProto& graph = *made_->proto.mutable_graph();
    graph.clear_node();
    for (pb::NodeProto& node : nodes) *graph.add_node() = std::move(node);
    remove_sources(graph);
    for (const auto& [name, part] : parts_) WEFT_TRY_STATUS(add_initializer(graph, name, part));
    if (how_.bits < 16) import_domain();
    TrainedTensors tensors;
    for (const auto& [name, part] : parts_) {
      tensors.specs[name] = part.spec;
      written_.after += static_cast<uint64_t>(part.spec.bytes().value);
    }
    tensors.read = [this](const std::string& name, const ByteSink& sink) -> Status {
      WEFT_TRY(const Tensor tensor, make(parts_.at(name)));
      return sink(tensor.bytes());
    };
    WEFT_TRY_STATUS(write_model(OnnxModel(made_), tensors, output));
    return written_;
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

  // Why the matrix stays as it is, as far as who reads this value tells: all are to be products or take rows,
  // or behind a Transpose products alone, in whole blocks. Empty: it need not.
  std::string refuse(const std::string& matrix, const std::string& value) const {
    const bool is_turned = value != matrix;
    if (returned_.contains(value)) return "the model returns it";
    const auto found = readers_.find(value);
    if (found == readers_.end()) return is_turned ? "" : "nothing reads it";
    for (const auto& [node, operand] : found->second) {
      if (how_.bits >= 16) continue;
      if (!is_turned && exchanges(*node)) {
        if (std::string why = refuse(matrix, node->output(0)); !why.empty()) return why;
        continue;
      }
      const auto use = use_of(*node, operand);
      if (!use || (is_turned && *use == Use::Rows)) return node->op_type() + " reads it";
      const bool is_product = *use != Use::Rows && (is_turned ? turned(*use) : *use) == Use::Product;
      const int64_t inner = spec(matrix).shape[is_product ? 0 : 1];
      if (block_of(inner) == 0) return "16 does not divide " + std::to_string(inner);
    }
    return {};
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
      std::string why = refuse(proto.name(), proto.name());
      if (matrix.dtype != DType::F32 && !(is_half(matrix.dtype) && how_.bits < 16))
        why = "it is " + to_string(matrix);
      if (!why.empty()) {
        written_.passed.push_back("'" + proto.name().substr(0, 128) + "': " + why);
        continue;
      }
      chosen_.insert(proto.name());
      ++written_.matrices;
      written_.before += static_cast<uint64_t>(matrix.bytes().value);
    }
  }

  std::string suffix() const { return how_.bits == 4 ? "_Q4" : "_Q8"; }
  // Names of the numbers and scales of a matrix in that order of rows.
  std::pair<std::string, std::string> quantised(const std::string& source, bool turned, bool for_rows) {
    const TensorSpec& matrix = spec(source);
    const int64_t rows = matrix.shape[turned ? 1 : 0], columns = matrix.shape[turned ? 0 : 1];
    const std::string base = for_rows && is_multiplied(source) ? source + "_rows" : source;
    const std::string numbers = base + suffix(), scales = base + "_scales";
    const int64_t block = block_of(columns), bytes = block * how_.bits / 8;
    Part part{.source = source,
              .what = Part::What::Numbers,
              .turned = turned,
              .rows = rows,
              .columns = columns,
              .block = block,
              .spec = {}};
    part.spec = {DType::U8, for_rows ? dag::Shape{rows, columns / block * bytes}
                                     : dag::Shape{rows, columns / block, bytes}};
    parts_.emplace(numbers, part);
    part.what = Part::What::Scales;
    part.spec = {matrix.dtype, {rows, columns / block}};
    parts_.emplace(scales, part);
    return {numbers, scales};
  }
  bool is_multiplied(const std::string& source) const {
    const auto& readers = readers_.at(source);
    return std::any_of(readers.begin(), readers.end(),
                       [](const auto& reader) { return reader.first->op_type() != "Gather"; });
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
      const Use way = matrix->second ? turned(*use) : *use;
      return add_product(node, matrix->first, way == Use::Product, nodes);
    }
    nodes.push_back(node);
  }

  void add_product(const pb::NodeProto& node, const std::string& matrix, bool turned,
                   std::vector<pb::NodeProto>& nodes) {
    const auto [numbers, scales] = quantised(matrix, turned, /*for_rows=*/false);
    const Part& part = parts_.at(numbers);
    const bool has_bias = node.op_type() == "Gemm" && node.input_size() > 2 && !node.input(2).empty();
    pb::NodeProto& product = nodes.emplace_back();
    product.set_name(node.name());
    product.set_domain("com.microsoft");
    product.set_op_type("MatMulNBits");
    for (const std::string& input : {node.input(0), numbers, scales}) product.add_input(input);
    product.add_output(has_bias ? node.output(0) + "/product" : node.output(0));
    set_int(product, "K", part.columns);
    set_int(product, "N", part.rows);
    set_int(product, "bits", how_.bits);
    set_int(product, "block_size", part.block);
    if (!has_bias) return;
    pb::NodeProto& add = nodes.emplace_back();
    if (!node.name().empty()) add.set_name(node.name() + "/bias");
    add.set_op_type("Add");
    add.add_input(node.output(0) + "/product");
    add.add_input(node.input(2));
    add.add_output(node.output(0));
  }

  void add_rows(const pb::NodeProto& node, const std::string& matrix, std::vector<pb::NodeProto>& nodes) {
    const auto [numbers, scales] = quantised(matrix, /*turned=*/false, /*for_rows=*/true);
    pb::NodeProto& rows = nodes.emplace_back();
    rows.set_name(node.name());
    rows.set_domain("com.microsoft");
    rows.set_op_type("GatherBlockQuantized");
    for (const std::string& input : {numbers, node.input(1), scales}) rows.add_input(input);
    rows.add_output(node.output(0));
    set_int(rows, "gather_axis", 0);
    set_int(rows, "quantize_axis", 1);
    set_int(rows, "bits", how_.bits);
    set_int(rows, "block_size", parts_.at(numbers).block);
  }

  // A Cast to float32 where a matrix is first read.
  void widen_before(const pb::NodeProto& node, std::vector<pb::NodeProto>& nodes) {
    for (const std::string& input : node.input()) {
      if (!chosen_.contains(input) || parts_.contains(input + std::string(kRoundedHalf))) continue;
      parts_.emplace(
          input + std::string(kRoundedHalf),
          Part{.source = input, .what = Part::What::Brain, .spec = {DType::BF16, spec(input).shape}});
      pb::NodeProto& cast = nodes.emplace_back();
      cast.set_op_type("Cast");
      cast.add_input(input + std::string(kRoundedHalf));
      cast.add_output(input);
      set_int(cast, "to", pb::TensorProto::FLOAT);
    }
    nodes.push_back(node);
  }

  void remove_sources(pb::GraphProto& graph) {
    auto& initializers = *graph.mutable_initializer();
    for (int i = initializers.size(); i-- > 0;) {
      const std::string name = initializers[i].name();
      if (!chosen_.contains(name)) continue;
      made_->forms.erase(made_->forms.begin() + i);
      initializers.erase(initializers.begin() + i);
      made_->weights.erase(name);
      made_->unread.erase(name);
    }
  }

  Status add_initializer(pb::GraphProto& graph, const std::string& name, const Part& part) {
    const Form form = model_.has_external_data() ? Form::External : Form::Raw;
    pb::TensorProto& proto = *graph.add_initializer();
    proto.set_name(name);
    proto.set_data_type(dtype_to_onnx(part.spec.dtype));
    for (const int64_t dim : part.spec.shape) proto.add_dims(dim);
    if (form == Form::External) proto.set_data_location(pb::TensorProto::EXTERNAL);
    made_->forms.push_back(form);
    WEFT_TRY(made_->weights[name], zeros_without_memory(part.spec));
    made_->unread[name] = {};
    return {};
  }

  void import_domain() {
    for (const auto& entry : made_->proto.opset_import())
      if (entry.domain() == "com.microsoft") return;
    auto& entry = *made_->proto.add_opset_import();
    entry.set_domain("com.microsoft");
    entry.set_version(1);
  }

  Result<Tensor> source_of(const Part& part) const {
    Tensor tensor(spec(part.source));
    std::span<std::byte> rest = tensor.mutable_bytes();
    WEFT_TRY_STATUS(model_.read_weight(part.source, [&](std::span<const std::byte> bytes) -> Status {
      const size_t count = std::min(bytes.size(), rest.size());
      std::copy_n(bytes.begin(), count, rest.begin());
      rest = rest.subspan(count);
      return {};
    }));
    if (!rest.empty()) return fail(ErrorCode::Corrupted, "initializer '" + part.source + "' lacks bytes");
    return dag::is_half(tensor.dtype()) ? widen_half(tensor) : tensor;
  }

  Result<Tensor> make(const Part& part) const {
    WEFT_TRY(const Tensor source, source_of(part));
    if (part.what == Part::What::Brain) return round_to_half(source, DType::BF16);
    const bool is_four = how_.bits == 4;
    const int middle = is_four ? 8 : 128;
    Tensor numbers({DType::U8, {part.rows * part.columns * how_.bits / 8}});
    std::vector<float> scales;
    const std::span<const float> from = source.as<float>();
    const std::span<uint8_t> to = numbers.mutable_as<uint8_t>();
    const TensorSpec scale_spec{spec(part.source).dtype, {part.rows, part.columns / part.block}};
    for (int64_t r = 0; r < part.rows; ++r) {
      for (int64_t b = 0; b < part.columns; b += part.block) {
        const auto number = [&](int64_t c) {
          return from[static_cast<size_t>(part.turned ? c * part.rows + r : r * part.columns + c)];
        };
        float most = 0;
        for (int64_t c = b; c < b + part.block; ++c)
          if (std::abs(number(c)) > std::abs(most)) most = number(c);
        // The scale as it will be read.
        const Tensor scale =
            dag::from_doubles({scale_spec.dtype, {1}}, std::vector<double>{double{most} / -middle});
        const auto step = static_cast<float>(to_doubles(scale)[0]);
        scales.push_back(step);
        for (int64_t c = b; c < b + part.block; ++c) {
          const float steps = step == 0 ? 0 : std::nearbyint(number(c) / step) + static_cast<float>(middle);
          const float kept = step == 0 ? static_cast<float>(middle)
                                       : std::clamp(steps, 0.0f, 2.0f * static_cast<float>(middle) - 1);
          const auto byte = static_cast<uint8_t>(kept);
          const auto at = static_cast<size_t>(r * part.columns + c);
          if (!is_four) to[at] = byte;
          if (is_four) to[at / 2] = static_cast<uint8_t>(to[at / 2] | byte << (at % 2 * 4));
        }
      }
    }
    if (part.what == Part::What::Numbers) return numbers.reshaped(part.spec.shape);
    return dag::from_doubles(scale_spec, std::vector<double>(scales.begin(), scales.end()));
  }

  const OnnxModel& model_;
  const FewerBits& how_;
  std::shared_ptr<OnnxModel::Structure> made_;
  std::map<std::string, std::vector<std::pair<const pb::NodeProto*, int>>> readers_;  // by value
  std::set<std::string> returned_, chosen_;
  std::map<std::string, std::string> transposed_;  // of chosen matrices, by value
  std::map<std::string, Part> parts_;              // by the initializer that it becomes
  WrittenBits written_;
};

}  // namespace

Result<WrittenBits> write_in_fewer_bits(const OnnxModel& model, const FewerBits& how,
                                        const std::filesystem::path& output) {
  return Rewriting(model, how).run(output);
}

}  // namespace weft::onnx
