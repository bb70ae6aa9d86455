#include "dag/onnx/parse.h"

#include <charconv>
#include <map>
#include <unordered_map>

#include "dag/onnx/scan.h"
#include "dag/onnx/sort.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using dag::Tensor;
using Form = OnnxModel::Structure::Form;

struct ExternalPlace {
  std::string location;
  int64_t offset = 0;
  int64_t length = -1;  // not given: the tensor's size
};

Result<int64_t> parse_size(const std::string& text, const char* what) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0)
    return fail(ErrorCode::Corrupted,
                std::string("external data has the ") + what + " '" + text.substr(0, 64) + "'");
  return value;
}

Result<ExternalPlace> external_place(const pb::TensorProto& proto) {
  ExternalPlace place;
  bool located = false;
  for (const auto& entry : proto.external_data()) {
    if (entry.key() == "location") {
      if (located) return fail(ErrorCode::Corrupted, "external data has two locations");
      place.location = entry.value();
      located = true;
    } else if (entry.key() == "offset") {
      WEFT_TRY(place.offset, parse_size(entry.value(), "offset"));
    } else if (entry.key() == "length") {
      WEFT_TRY(place.length, parse_size(entry.value(), "length"));
    }  // others, such as a checksum, are advice
  }
  if (!located) return fail(ErrorCode::Corrupted, "external data has no location");
  return place;
}

// Which bytes of the files beside the model are spoken for, and by whom. Each initializer is memory of its
// own: one range for many of them makes a model of 3 KB ask for more than a machine has.
class ClaimedRanges {
 public:
  Status claim(const ExternalPlace& place, int64_t size, const std::string& name) {
    if (size == 0) return {};
    auto& ranges = files_[std::filesystem::path(place.location).lexically_normal().generic_string()];
    const auto begin = static_cast<uint64_t>(place.offset), end = begin + static_cast<uint64_t>(size);
    const auto next = ranges.lower_bound(begin);
    if (next != ranges.end() && next->first < end) return overlaps(next->second, place);
    if (next != ranges.begin() && std::prev(next)->second.end > begin)
      return overlaps(std::prev(next)->second, place);
    ranges.emplace_hint(next, begin, Range{end, name});
    return {};
  }

 private:
  struct Range {
    uint64_t end = 0;
    std::string name;
  };
  static tl::unexpected<Error> overlaps(const Range& other, const ExternalPlace& place) {
    return fail(ErrorCode::Corrupted, "its external data in '" + place.location.substr(0, 256) +
                                          "' overlaps that of initializer '" + other.name.substr(0, 128) +
                                          "'");
  }

  std::map<std::string, std::map<uint64_t, Range>> files_;  // by where they begin
};

bool has_data_inside(const pb::TensorProto& proto) {
  return proto.has_raw_data() || proto.float_data_size() + proto.int64_data_size() + proto.int32_data_size() +
                                         proto.double_data_size() + proto.uint64_data_size() >
                                     0;
}

std::string quoted(const std::string& name) { return "'" + name.substr(0, 128) + "'"; }

Status take_weights(OnnxModel::Structure& model, const ImportLimits& limits, const TakeWeight& take) {
  int64_t total = 0;
  ClaimedRanges claimed;
  auto& graph = *model.proto.mutable_graph();
  for (auto& proto : *graph.mutable_initializer()) {
    const std::string& name = proto.name();
    if (name.empty()) return fail(ErrorCode::Corrupted, "an initializer has no name");
    if (static_cast<int64_t>(name.size()) > limits.name_bytes_max)
      return fail(ErrorCode::OutOfRange,
                  "the name of an initializer has " + std::to_string(name.size()) + " bytes");
    if (model.weights.contains(name))
      return fail(ErrorCode::Corrupted, "two initializers have the name " + quoted(name));
    WEFT_TRY(dag::TensorSpec spec, tensor_spec(proto, limits));
    total += spec.bytes().value;
    if (total > limits.weights_bytes_max)
      return fail(ErrorCode::ResourceExhausted,
                  "the initializers claim more than " + std::to_string(limits.weights_bytes_max) + " bytes");
    const bool outside = proto.data_location() == pb::TensorProto::EXTERNAL || proto.external_data_size() > 0;
    const auto within = [&](const Error& error) {
      return fail(outside ? error.within("initializer " + quoted(name)) : error);
    };
    if (outside) {
      const auto place = external_place(proto);
      if (!place) return within(place.error());
      const Status alone = claimed.claim(*place, stored_bytes(proto, spec), name);
      if (!alone) return within(alone.error());
    }
    auto tensor = take(proto, spec, outside);
    if (!tensor) return within(tensor.error());
    model.forms.push_back(outside ? Form::External : proto.has_raw_data() ? Form::Raw : Form::Typed);
    proto.clear_raw_data();
    model.weights.emplace(name, std::move(*tensor));
  }
  return {};
}

// The tensor of a Constant node of floats; nullptr for other nodes.
pb::TensorProto* float_constant(pb::NodeProto& node, const ImportLimits& limits) {
  const bool standard = node.domain().empty() || node.domain() == "ai.onnx";
  if (!standard || node.op_type() != "Constant" || node.input_size() != 0 || node.output_size() != 1 ||
      node.attribute_size() != 1)
    return nullptr;
  const std::string& name = node.output(0);
  auto& attribute = *node.mutable_attribute(0);
  if (name.empty() || static_cast<int64_t>(name.size()) > limits.name_bytes_max ||
      attribute.name() != "value" || !attribute.has_t())
    return nullptr;
  auto& proto = *attribute.mutable_t();
  const auto dtype = dtype_from_onnx(proto.data_type());
  return dtype && is_float(*dtype) && has_data_inside(proto) ? &proto : nullptr;
}

// Beside the initializers, in the graph's order. What does not fit, or has a name that several nodes return,
// is left to who imports the node.
void take_constants(OnnxModel::Structure& model, const ImportLimits& limits, const TakeWeight& take) {
  std::unordered_map<std::string, int> returned;
  for (const auto& node : model.proto.graph().node())
    for (const auto& output : node.output()) ++returned[output];
  for (auto& node : *model.proto.mutable_graph()->mutable_node()) {
    pb::TensorProto* proto = float_constant(node, limits);
    if (proto == nullptr || model.weights.contains(node.output(0)) || returned[node.output(0)] > 1) continue;
    const auto spec = tensor_spec(*proto, limits);
    if (!spec) continue;
    auto tensor = take(*proto, *spec, /*outside=*/false);
    if (!tensor) continue;
    const Form form = proto->has_raw_data() ? Form::Raw : Form::Typed;
    proto->clear_raw_data();
    model.constants.emplace(node.output(0), form);
    model.weights.emplace(node.output(0), std::move(*tensor));
  }
}

Result<int64_t> standard_opset(const pb::ModelProto& proto) {
  int64_t version = 0;
  for (const auto& entry : proto.opset_import()) {
    if (!entry.domain().empty() && entry.domain() != "ai.onnx") continue;
    if (entry.version() <= 0)
      return fail(ErrorCode::Corrupted,
                  "operator set " + std::to_string(entry.version()) + " does not exist");
    if (version != 0 && version != entry.version())
      return fail(ErrorCode::Corrupted, "the standard operator set is imported as version " +
                                            std::to_string(version) + " and as version " +
                                            std::to_string(entry.version()));
    version = entry.version();
  }
  return version;  // 0: only other domains, which the import refuses by name
}

}  // namespace

Result<std::vector<std::byte>> read_scanned(const std::filesystem::path& path, const ImportLimits& limits) {
  WEFT_TRY(const File file, open_file(path));
  const auto within = [&](Error error) { return fail(error.within(path.string())); };
  const auto counts = scan_model(
      file.size(), [&](int64_t offset, std::span<std::byte> bytes) { return file.read_at(offset, bytes); },
      limits);
  if (!counts) return within(counts.error());
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  if (auto read = file.read_at(0, bytes); !read) return within(read.error());
  if (auto again = scan_model(bytes, limits); !again) return within(again.error());
  return bytes;
}

Result<OnnxModel> parse_model(std::span<const std::byte> bytes, const ImportLimits& limits,
                              const TakeWeight& take, bool is_outline) {
  auto model = std::make_shared<OnnxModel::Structure>();
  model->is_outline = is_outline;
  if (!model->proto.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())))
    return fail(ErrorCode::Corrupted, "not an ONNX model: protobuf cannot parse it");
  if (!model->proto.has_graph()) return fail(ErrorCode::Corrupted, "not an ONNX model: it has no graph");
  if (model->proto.graph().sparse_initializer_size() > 0)
    return fail(ErrorCode::Unsupported, "the model has sparse initializers; export it with dense ones");
  WEFT_TRY(model->opset, standard_opset(model->proto));
  WEFT_TRY_STATUS(sort_nodes(model->proto));
  WEFT_TRY_STATUS(take_weights(*model, limits, take));
  take_constants(*model, limits, take);
  return OnnxModel(std::move(model));
}

Result<Tensor> ExternalReader::read(const pb::TensorProto& proto) {
  if (!folder_)
    return fail(
        ErrorCode::PermissionDenied,
        "keeps its data in another file; a model that did not come from a path must hold its own data");
  if (has_data_inside(proto))
    return fail(ErrorCode::Corrupted, "has data inside the file and outside at once");
  WEFT_TRY(const ExternalPlace place, external_place(proto));
  WEFT_TRY(dag::TensorSpec spec, tensor_spec(proto, limits_));
  WEFT_TRY(const File* file, open(place.location));
  const int64_t size = stored_bytes(proto, spec);
  if (place.length >= 0 && place.length != size)
    return fail(ErrorCode::Corrupted, "claims " + to_string(spec) + ", " + std::to_string(size) +
                                          " bytes, but its external data has " +
                                          std::to_string(place.length));
  if (place.offset > file->size() || size > file->size() - place.offset)
    return fail(ErrorCode::Corrupted, "its external data ends beyond '" + place.location + "', which has " +
                                          std::to_string(file->size()) + " bytes");
  if (is_four_bit(proto)) {
    std::vector<std::byte> stored(static_cast<size_t>(size));
    WEFT_TRY_STATUS(file->read_at(place.offset, stored));
    return tensor_from_stored(proto, spec, stored);
  }
  Tensor tensor(spec);
  WEFT_TRY_STATUS(file->read_at(place.offset, tensor.mutable_bytes()));
  return tensor;
}

Result<const File*> ExternalReader::open(const std::string& location) {
  auto found = files_.find(location);
  if (found == files_.end()) {
    if (files_.size() >= 64) return fail(ErrorCode::ResourceExhausted, "external data in more than 64 files");
    WEFT_TRY(File file, open_beneath(*folder_, location));
    found = files_.emplace(location, std::move(file)).first;
  }
  return &found->second;
}

}  // namespace weft::onnx
