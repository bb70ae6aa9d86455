#include "dag/onnx/parse.h"

#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <set>
#include <unordered_map>

#include "dag/onnx/fields.h"
#include "dag/onnx/scan.h"
#include "dag/onnx/skeleton.h"
#include "dag/onnx/sort.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
using dag::Tensor;
using dag::TensorSpec;
using Form = OnnxModel::Structure::Form;
using Place = OnnxModel::Structure::Place;

constexpr int64_t kSkeletonKeeps = int64_t{64} << 10;  // bytes of a tensor that protobuf may hold
constexpr size_t kFilesMax = 64;                       // beside the model
constexpr int64_t kShapeElementsMax = 64;              // of a tensor that may say a shape

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

// Pages that nobody may write: the system's one page of zeros, which is no memory, however much is claimed.
Result<std::shared_ptr<std::byte[]>> map_zeros(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  void* memory = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED)
    return fail(ErrorCode::ResourceExhausted,
                "a weight claims " + std::to_string(bytes) + " bytes, more than can be had");
  return std::shared_ptr<std::byte[]>(static_cast<std::byte*>(memory),
                                      [size](std::byte* at) { ::munmap(at, size); });
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

bool may_say_shape(const TensorSpec& spec) {
  return !is_float(spec.dtype) && spec.rank() <= 1 && spec.element_count() <= kShapeElementsMax;
}

// The weights of a model whose skeleton was parsed: read, or where they are to be read.
class Weights {
 public:
  Weights(ModelFiles& files, std::shared_ptr<const RandomAccess> own, const ParseOptions& options,
          OnnxModel::Structure& model)
      : files_(files), own_(std::move(own)), options_(options), model_(model) {}

  Status take(const std::vector<std::optional<Skeleton::Cut>>& cuts) {
    auto& initializers = *model_.proto.mutable_graph()->mutable_initializer();
    if (cuts.size() != static_cast<size_t>(initializers.size()))
      return fail(ErrorCode::Corrupted, "not an ONNX model: its initializers changed while it was read");
    for (int i = 0; i < initializers.size(); ++i)
      WEFT_TRY_STATUS(take(initializers[i], cuts[static_cast<size_t>(i)]));
    return {};
  }

  // Beside the initializers, in the graph's order. What does not fit, or has a name that several nodes
  // return, is left to who imports the node.
  void take_constants() {
    std::unordered_map<std::string, int> returned;
    for (const auto& node : model_.proto.graph().node())
      for (const auto& output : node.output()) ++returned[output];
    for (auto& node : *model_.proto.mutable_graph()->mutable_node()) {
      pb::TensorProto* proto = float_constant(node, options_.limits);
      if (proto == nullptr || model_.weights.contains(node.output(0)) || returned[node.output(0)] > 1)
        continue;
      auto tensor = tensor_from_proto(*proto, options_.limits);
      if (!tensor) continue;
      const Form form = proto->has_raw_data() ? Form::Raw : Form::Typed;
      proto->clear_raw_data();
      model_.constants.emplace(node.output(0), form);
      model_.weights.emplace(node.output(0), std::move(*tensor));
    }
  }

 private:
  Status take(pb::TensorProto& proto, const std::optional<Skeleton::Cut>& cut) {
    WEFT_TRY(const TensorSpec spec, claim(proto));
    const bool outside = proto.data_location() == pb::TensorProto::EXTERNAL || proto.external_data_size() > 0;
    const bool is_raw = proto.has_raw_data() || (cut && cut->field == fields::kTensorRawData);
    auto tensor = outside ? take_outside(proto, spec)
                  : cut   ? take_cut(proto, spec, *cut)
                          : take_inside(proto, spec);
    if (!tensor)
      return fail(outside ? tensor.error().within("initializer " + quoted(proto.name())) : tensor.error());
    model_.forms.push_back(outside ? Form::External : is_raw ? Form::Raw : Form::Typed);
    proto.clear_raw_data();
    model_.weights.emplace(proto.name(), std::move(*tensor));
    return {};
  }

  // What an initializer says of itself, whether or not it is read.
  Result<TensorSpec> claim(const pb::TensorProto& proto) {
    const std::string& name = proto.name();
    if (name.empty()) return fail(ErrorCode::Corrupted, "an initializer has no name");
    if (static_cast<int64_t>(name.size()) > options_.limits.name_bytes_max)
      return fail(ErrorCode::OutOfRange,
                  "the name of an initializer has " + std::to_string(name.size()) + " bytes");
    if (model_.weights.contains(name))
      return fail(ErrorCode::Corrupted, "two initializers have the name " + quoted(name));
    WEFT_TRY(TensorSpec spec, tensor_spec(proto, options_.limits));
    claimed_bytes_ += spec.bytes().value;
    if (claimed_bytes_ > options_.limits.weights_bytes_max)
      return fail(
          ErrorCode::ResourceExhausted,
          "the initializers claim more than " + std::to_string(options_.limits.weights_bytes_max) + " bytes");
    return spec;
  }

  Result<Tensor> take_inside(const pb::TensorProto& proto, const TensorSpec& spec) {
    WEFT_TRY(Tensor tensor, tensor_from_proto(proto, options_.limits));
    if (!stays_packed(proto, spec)) return tensor;
    return Tensor(packed_spec(proto, spec), stored_form(proto, tensor));
  }
  static TensorSpec packed_spec(const pb::TensorProto& proto, const TensorSpec& spec) {
    return {spec.dtype, {stored_bytes(proto, spec)}};
  }

  Result<Tensor> take_cut(const pb::TensorProto& proto, const TensorSpec& spec, const Skeleton::Cut& cut) {
    const bool is_of_type = cut.field == fields::kTensorRawData || spec.dtype == dag::DType::F32;
    const int64_t size = stored_bytes(proto, spec);
    if (!is_of_type || cut.size != size)
      return fail(ErrorCode::Corrupted, "tensor " + quoted(proto.name()) + ": claims " + to_string(spec) +
                                            ", " + std::to_string(size) + " bytes, but holds " +
                                            std::to_string(cut.size) +
                                            (is_of_type ? "" : " in a field of another type"));
    return read(proto, spec, {own_, {}, cut.offset});
  }

  Result<Tensor> take_outside(const pb::TensorProto& proto, const TensorSpec& spec) {
    WEFT_TRY(const ExternalPlace place, external_place(proto));
    WEFT_TRY_STATUS(ranges_.claim(place, stored_bytes(proto, spec), proto.name()));
    auto found = open(proto, place, spec);
    auto tensor = found ? read(proto, spec, *found) : fail(found.error());
    // What may not be read is refused also by who needs none of it.
    if (tensor || !options_.may_lack_files || found || tensor.error().code == ErrorCode::PermissionDenied)
      return tensor;
    if (!may_say_shape(spec))
      return leave(proto.name(), stays_packed(proto, spec) ? packed_spec(proto, spec) : spec, {});
    if (tensor.error().code != ErrorCode::NotFound) return tensor;
    return fail(ErrorCode::NotFound,
                to_string(spec) + " may say a shape, and its bytes are not there (" + tensor.error().message +
                    "): weights are not read, but such numbers must be; keep them in the model's own file");
  }

  Result<Place> open(const pb::TensorProto& proto, const ExternalPlace& place, const TensorSpec& spec) {
    if (has_data_inside(proto))
      return fail(ErrorCode::Corrupted, "has data inside the file and outside at once");
    locations_.insert(place.location);
    if (locations_.size() > kFilesMax)
      return fail(ErrorCode::ResourceExhausted, "external data in more than 64 files");
    WEFT_TRY(auto file, files_.open_beside(place.location));
    const int64_t size = stored_bytes(proto, spec);
    if (place.length >= 0 && place.length != size)
      return fail(ErrorCode::Corrupted, "claims " + to_string(spec) + ", " + std::to_string(size) +
                                            " bytes, but its external data has " +
                                            std::to_string(place.length));
    if (place.offset > file->size() || size > file->size() - place.offset)
      return fail(ErrorCode::Corrupted, "its external data ends beyond '" + place.location + "', which has " +
                                            std::to_string(file->size()) + " bytes");
    return Place{std::move(file), place.location, place.offset};
  }

  Result<Tensor> read(const pb::TensorProto& proto, const TensorSpec& claimed, Place place) {
    const TensorSpec spec = stays_packed(proto, claimed) ? packed_spec(proto, claimed) : claimed;
    if (is_four_bit(proto) && spec == claimed) {
      std::vector<std::byte> stored(static_cast<size_t>(stored_bytes(proto, spec)));
      WEFT_TRY_STATUS(place.file->read_at(place.offset, stored));
      return tensor_from_stored(proto, spec, stored);
    }
    const bool is_plain = spec.dtype != dag::DType::Bool;  // else any byte but 0 is true
    if (is_plain && spec.bytes().value > options_.read_max)
      return leave(proto.name(), spec, std::move(place));
    Tensor tensor(spec);
    WEFT_TRY_STATUS(place.file->read_at(place.offset, tensor.mutable_bytes()));
    normalise_bools(tensor);
    return tensor;
  }

  Result<Tensor> leave(const std::string& name, const TensorSpec& spec, Place place) {
    if (!zeros_ || spec.bytes().value > zeros_bytes_) {
      WEFT_TRY(zeros_, map_zeros(spec.bytes().value));
      zeros_bytes_ = spec.bytes().value;
    }
    model_.unread.emplace(name, std::move(place));
    return Tensor(spec, zeros_);
  }

  ModelFiles& files_;
  const std::shared_ptr<const RandomAccess> own_;
  const ParseOptions& options_;
  OnnxModel::Structure& model_;
  ClaimedRanges ranges_;
  std::set<std::string> locations_;
  int64_t claimed_bytes_ = 0;
  std::shared_ptr<std::byte[]> zeros_;  // the same memory for all that fit into it
  int64_t zeros_bytes_ = 0;
};

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

Result<Tensor> zeros_without_memory(const TensorSpec& spec) {
  WEFT_TRY(auto zeros, map_zeros(spec.bytes().value));
  return Tensor(spec, std::move(zeros));
}

Result<OnnxModel> parse_model(ModelFiles& files, const ParseOptions& options) {
  WEFT_TRY(const std::shared_ptr<const RandomAccess> file, files.open_model());
  const ReadAt read = [&](int64_t offset, std::span<std::byte> bytes) {
    return file->read_at(offset, bytes);
  };
  WEFT_TRY_STATUS(scan_model(file->size(), read, options.limits));
  WEFT_TRY(Skeleton skeleton, read_skeleton(file->size(), read, std::min(kSkeletonKeeps, options.read_max)));
  WEFT_TRY_STATUS(scan_model(skeleton.bytes, options.limits));
  auto model = std::make_shared<OnnxModel::Structure>();
  if (!model->proto.ParseFromArray(skeleton.bytes.data(), static_cast<int>(skeleton.bytes.size())))
    return fail(ErrorCode::Corrupted, "not an ONNX model: protobuf cannot parse it");
  skeleton.bytes = {};
  if (!model->proto.has_graph()) return fail(ErrorCode::Corrupted, "not an ONNX model: it has no graph");
  if (model->proto.graph().sparse_initializer_size() > 0)
    return fail(ErrorCode::Unsupported, "the model has sparse initializers; export it with dense ones");
  WEFT_TRY(model->opset, standard_opset(model->proto));
  WEFT_TRY_STATUS(sort_nodes(model->proto));
  Weights weights(files, file, options, *model);
  WEFT_TRY_STATUS(weights.take(skeleton.initializers));
  weights.take_constants();
  return OnnxModel(std::move(model));
}

}  // namespace weft::onnx
