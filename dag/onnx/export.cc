#include "dag/onnx/export.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "dag/onnx/batch_norm.h"
#include "dag/onnx/fields.h"
#include "dag/onnx/inference_twin.h"
#include "dag/onnx/outline.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
namespace fs = std::filesystem;
using Form = OnnxModel::Structure::Form;

constexpr int64_t kExternalAlignment = 64;
constexpr const char* kDataSuffix = ".data";
constexpr const char* kPartialSuffix = ".partial";

// A file that appears under its name when it is complete, and not at all otherwise.
class NewFile {
 public:
  explicit NewFile(fs::path path) : path_(std::move(path)), temporary_(path_.string() + kPartialSuffix) {}
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (descriptor_ < 0) return;
    ::close(descriptor_);
    ::unlink(temporary_.c_str());
  }

  Status open() {
    ::unlink(temporary_.c_str());  // left behind by a run that was stopped
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (descriptor_ < 0) return failed("creating");
    return {};
  }
  Status write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(descriptor_, bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return failed("writing");
      bytes = bytes.subspan(static_cast<size_t>(written));
      size_ += written;
    }
    return {};
  }
  Status commit() {
    if (::fsync(descriptor_) != 0) return failed("writing");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed("renaming");
    ::close(descriptor_);
    descriptor_ = -1;
    return {};
  }
  int64_t size() const { return size_; }

 private:
  tl::unexpected<Error> failed(const char* what) const {
    const int code = errno;
    const ErrorCode kind = code == ENOSPC || code == EDQUOT || code == EFBIG  ? ErrorCode::ResourceExhausted
                           : code == EACCES || code == EPERM || code == EROFS ? ErrorCode::PermissionDenied
                           : code == ENOENT || code == ENOTDIR                ? ErrorCode::NotFound
                                                                              : ErrorCode::Unavailable;
    return fail(kind, std::string(what) + " '" + path_.string() + "': " + std::strerror(code));
  }

  fs::path path_;
  std::string temporary_;
  int descriptor_ = -1;
  int64_t size_ = 0;
};

Status check_names(const OnnxModel& model, const TrainedTensors& trained) {
  for (const auto& [name, spec] : trained.specs) {
    const auto found = model.weights().find(name);
    if (found == model.weights().end())
      return fail(ErrorCode::InvalidArgument, "the model has no initializer '" + name + "' to write");
    if (found->second.spec() != spec && !is_widened(found->second.spec(), spec))
      return fail(ErrorCode::InvalidArgument, "initializer '" + name + "' is " +
                                                  to_string(found->second.spec()) + " in the model, but " +
                                                  to_string(spec) + " is to be written");
  }
  return {};
}

// The bytes that the files are to have of a tensor.
class NewWeights {
 public:
  NewWeights(const OnnxModel& model, const TrainedTensors& trained) : model_(model), trained_(trained) {}

  const dag::TensorSpec& spec(const std::string& name) const {
    return model_.weights().find(name)->second.spec();
  }

  bool is_new(const std::string& name) const { return trained_.specs.contains(name); }

  Status read(const std::string& name, const ByteSink& sink) const {
    int64_t size = 0;
    const ByteSink counted = [&](std::span<const std::byte> bytes) {
      size += static_cast<int64_t>(bytes.size());
      return sink(bytes);
    };
    const auto trained = trained_.specs.find(name);
    if (trained == trained_.specs.end())
      WEFT_TRY_STATUS(model_.read_weight(name, counted));
    else if (is_widened(spec(name), trained->second))
      WEFT_TRY_STATUS(read_rounded(name, counted));
    else
      WEFT_TRY_STATUS(trained_.read(name, counted));
    if (size != spec(name).bytes().value)
      return fail(ErrorCode::Corrupted, "initializer '" + name + "' came with " + std::to_string(size) +
                                            " bytes, not " + std::to_string(spec(name).bytes().value));
    return {};
  }

  Result<dag::Tensor> whole(const std::string& name) const {
    dag::Tensor tensor(spec(name));
    std::span<std::byte> rest = tensor.mutable_bytes();
    WEFT_TRY_STATUS(read(name, [&](std::span<const std::byte> bytes) -> Status {
      const size_t count = std::min(bytes.size(), rest.size());
      std::copy_n(bytes.begin(), count, rest.begin());
      rest = rest.subspan(count);
      return {};
    }));
    return tensor;
  }

 private:
  // What was trained in float32, in the file's type. Pieces may end within a number.
  Status read_rounded(const std::string& name, const ByteSink& sink) const {
    std::vector<std::byte> begun;
    return trained_.read(name, [&](std::span<const std::byte> bytes) -> Status {
      begun.insert(begun.end(), bytes.begin(), bytes.end());
      const auto whole = static_cast<std::ptrdiff_t>(begun.size() - begun.size() % sizeof(float));
      const dag::TensorSpec numbers{dag::DType::F32, {whole / static_cast<std::ptrdiff_t>(sizeof(float))}};
      const dag::Tensor rounded = round_to_half(
          dag::Tensor(numbers, std::span(begun).first(static_cast<size_t>(whole))), spec(name).dtype);
      begun.erase(begun.begin(), begun.begin() + whole);
      return sink(rounded.bytes());
    });
  }

  const OnnxModel& model_;
  const TrainedTensors& trained_;
};

// A message as protobuf writes it, in the order of its fields' numbers: what comes before one field and what
// comes after it, so that this field's bytes may be written without ever being one string.
struct Around {
  std::string before, after;
};
Around around(const google::protobuf::Message& message, int number) {
  const auto part = [&](bool is_before) {
    const std::unique_ptr<google::protobuf::Message> copy(message.New());
    copy->CopyFrom(message);
    const auto* reflection = copy->GetReflection();
    std::vector<const google::protobuf::FieldDescriptor*> fields;
    reflection->ListFields(*copy, &fields);
    for (const auto* field : fields)
      if (is_before ? field->number() >= number : field->number() <= number)
        reflection->ClearField(copy.get(), field);
    if (is_before) reflection->MutableUnknownFields(copy.get())->Clear();  // they come last
    return copy->SerializeAsString();
  };
  return {part(true), part(false)};
}

std::string head_of(uint32_t field, uint64_t size) {
  std::string bytes;
  const auto append = [&](uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
    bytes += static_cast<char>(value);
  };
  append(field << 3 | fields::kDelimited);
  append(size);
  return bytes;
}

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

bool has_typed_data(const pb::TensorProto& proto) {
  return proto.float_data_size() + proto.double_data_size() + proto.int32_data_size() +
             proto.int64_data_size() + proto.uint64_data_size() >
         0;
}

// The file of a model whose data are put in as they are written.
class ModelWriter {
 public:
  // `proto`: without the data that is put in.
  ModelWriter(const OnnxModel& model, const NewWeights& weights, const pb::ModelProto& proto)
      : weights_(weights) {
    pb::GraphProto graph = proto.graph();
    for (int i = 0; i < graph.initializer_size(); ++i)
      add(graph.initializer(i), model.structure().forms[static_cast<size_t>(i)]);
    graph.clear_initializer();
    graph_ = around(graph, fields::kGraphInitializer);
    graph_size_ = graph_.before.size() + graph_.after.size();
    for (const Entry& entry : entries_)
      graph_size_ += head_of(fields::kGraphInitializer, entry.size()).size() + entry.size();
    pb::ModelProto rest = proto;
    rest.clear_graph();
    model_ = around(rest, fields::kModelGraph);
  }

  Status write(const ByteSink& sink) const {
    const std::string head = head_of(fields::kModelGraph, graph_size_);
    if (model_.before.size() + head.size() + graph_size_ + model_.after.size() >
        static_cast<uint64_t>(ImportLimits{}.file_bytes_max))
      return fail(ErrorCode::ResourceExhausted,
                  "the trained model exceeds protobuf's 2 GiB; use external data");
    for (const std::string* text : {&model_.before, &head, &graph_.before})
      WEFT_TRY_STATUS(sink(bytes_of(*text)));
    for (const Entry& entry : entries_) {
      WEFT_TRY_STATUS(sink(bytes_of(head_of(fields::kGraphInitializer, entry.size()))));
      WEFT_TRY_STATUS(sink(bytes_of(entry.around.before)));
      if (entry.data_size) {
        WEFT_TRY_STATUS(sink(bytes_of(entry.data_head)));
        WEFT_TRY_STATUS(weights_.read(entry.name, sink));
      }
      WEFT_TRY_STATUS(sink(bytes_of(entry.around.after)));
    }
    WEFT_TRY_STATUS(sink(bytes_of(graph_.after)));
    return sink(bytes_of(model_.after));
  }

 private:
  struct Entry {
    std::string name;
    Around around;
    std::string data_head;
    std::optional<uint64_t> data_size;  // of data that is put in

    uint64_t size() const {
      return around.before.size() + data_head.size() + data_size.value_or(0) + around.after.size();
    }
  };

  void add(const pb::TensorProto& proto, Form form) {
    Entry& entry = entries_.emplace_back();
    entry.name = proto.name();
    // Typed data is in the proto unless it is large, and numbers of four bits are.
    const bool is_put_in =
        (form == Form::Raw && !proto.has_raw_data()) ||
        (form == Form::Typed && !has_typed_data(proto) && weights_.spec(entry.name).element_count() > 0);
    if (!is_put_in) {
      entry.around.before = proto.SerializeAsString();
      return;
    }
    const uint32_t field = form == Form::Raw ? fields::kTensorRawData : fields::kTensorFloatData;
    entry.around = around(proto, static_cast<int>(field));
    entry.data_size = static_cast<uint64_t>(weights_.spec(entry.name).bytes().value);
    entry.data_head = head_of(field, *entry.data_size);
  }

  const NewWeights& weights_;
  Around model_, graph_;
  std::vector<Entry> entries_;
  uint64_t graph_size_ = 0;
};

// Puts trained data into the proto where it has a field of typed data for it, and numbers of four bits.
Status store_typed(const OnnxModel& model, const TrainedTensors& trained, const NewWeights& weights,
                   pb::ModelProto& proto) {
  auto& initializers = *proto.mutable_graph()->mutable_initializer();
  for (int i = 0; i < initializers.size(); ++i) {
    const Form form = model.structure().forms[static_cast<size_t>(i)];
    const std::string& name = initializers[i].name();
    if (form != Form::External && is_four_bit(initializers[i])) {
      WEFT_TRY(const dag::Tensor tensor, weights.whole(name));
      store_in_proto(tensor, form == Form::Raw, initializers[i]);
    }
    if (form != Form::Typed || is_four_bit(initializers[i])) continue;
    // Large data is not in the proto: it is put in as the file is written.
    if (!trained.specs.contains(name) || !has_typed_data(initializers[i])) continue;
    WEFT_TRY(const dag::Tensor tensor, weights.whole(name));
    store_in_proto(tensor, /*raw=*/false, initializers[i]);
  }
  return {};
}

// Constant nodes, which the inference twin may have fewer of.
Status store_constants(const OnnxModel& model, const NewWeights& weights, pb::ModelProto& proto) {
  const auto& forms = model.structure().constants;
  for (auto& node : *proto.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Constant" || node.output_size() != 1) continue;
    const auto form = forms.find(node.output(0));
    if (form == forms.end()) continue;
    WEFT_TRY(const dag::Tensor tensor, weights.whole(node.output(0)));
    store_in_proto(tensor, form->second == Form::Raw, *node.mutable_attribute(0)->mutable_t());
  }
  return {};
}

// Data that stays where the model has it.
void link_external(const std::string& folder, pb::TensorProto& initializer) {
  for (auto& entry : *initializer.mutable_external_data())
    if (entry.key() == "location") entry.set_value(folder + entry.value());
}

// Writes what lives outside, and says in the proto where it is.
Status write_external(const OnnxModel& model, const NewWeights& weights, const std::string& location,
                      const std::optional<std::string>& linked, NewFile& data, pb::ModelProto& proto) {
  auto& initializers = *proto.mutable_graph()->mutable_initializer();
  for (int i = 0; i < initializers.size(); ++i) {
    if (model.structure().forms[static_cast<size_t>(i)] != Form::External) continue;
    auto& initializer = initializers[i];
    if (linked && !weights.is_new(initializer.name())) {
      link_external(*linked, initializer);
      continue;
    }
    static constexpr std::byte kZeros[kExternalAlignment]{};
    const int64_t padding = (kExternalAlignment - data.size() % kExternalAlignment) % kExternalAlignment;
    WEFT_TRY_STATUS(data.write(std::span(kZeros).first(static_cast<size_t>(padding))));
    initializer.clear_external_data();
    const auto add = [&](const char* key, std::string value) {
      auto* entry = initializer.add_external_data();
      entry->set_key(key);
      entry->set_value(std::move(value));
    };
    add("location", location);
    add("offset", std::to_string(data.size()));
    add("length", std::to_string(stored_bytes(initializer, weights.spec(initializer.name()))));
    if (is_four_bit(initializer) && !is_packed(initializer, weights.spec(initializer.name()))) {
      WEFT_TRY(const dag::Tensor tensor, weights.whole(initializer.name()));
      WEFT_TRY_STATUS(data.write(stored_form(initializer, tensor)));
      continue;
    }
    WEFT_TRY_STATUS(weights.read(initializer.name(),
                                 [&](std::span<const std::byte> bytes) { return data.write(bytes); }));
  }
  return {};
}

Status write_file(const OnnxModel& model, const NewWeights& weights, const pb::ModelProto& proto,
                  const fs::path& path) {
  NewFile file(path);
  WEFT_TRY_STATUS(file.open());
  const ModelWriter writer(model, weights, proto);
  WEFT_TRY_STATUS(writer.write([&](std::span<const std::byte> bytes) { return file.write(bytes); }));
  return file.commit();
}

}  // namespace

TrainedTensors in_memory(const dag::Weights& weights) {
  TrainedTensors trained;
  for (const auto& [name, tensor] : weights) trained.specs.emplace(name, tensor.spec());
  trained.read = [&weights](const std::string& name, const ByteSink& sink) {
    return sink(weights.find(name)->second.bytes());
  };
  return trained;
}

fs::path inference_path(const fs::path& trained) {
  fs::path path = trained;
  path.replace_extension();
  return path.string() + ".inference.onnx";
}

std::vector<fs::path> trained_paths(const fs::path& output) {
  std::vector<fs::path> paths;
  for (const std::string& file :
       {output.string(), output.string() + kDataSuffix, inference_path(output).string()})
    for (const char* suffix : {"", kPartialSuffix}) paths.emplace_back(file + suffix);
  return paths;
}

Result<std::string> trained_bytes(const OnnxModel& model, const dag::Weights& weights) {
  const TrainedTensors trained = in_memory(weights);
  WEFT_TRY_STATUS(check_names(model, trained));
  if (model.has_external_data())
    return fail(ErrorCode::Unsupported, "a model with external data cannot be written as one piece");
  const NewWeights all(model, trained);
  pb::ModelProto proto = model.structure().proto;
  WEFT_TRY_STATUS(store_typed(model, trained, all, proto));
  WEFT_TRY_STATUS(store_constants(model, all, proto));
  std::string text;
  WEFT_TRY_STATUS(ModelWriter(model, all, proto).write([&](std::span<const std::byte> bytes) -> Status {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  }));
  return text;
}

namespace {

// The model's graph with the tensors that stand in it, and those outside written. Constant nodes are as in
// the model.
Result<pb::ModelProto> proto_of(const OnnxModel& model, const TrainedTensors& trained,
                                const NewWeights& weights, const std::optional<std::string>& linked,
                                const fs::path& output) {
  pb::ModelProto proto = model.structure().proto;
  WEFT_TRY_STATUS(store_typed(model, trained, weights, proto));
  if (!model.has_external_data()) return proto;
  NewFile data(output.string() + kDataSuffix);
  WEFT_TRY_STATUS(data.open());
  WEFT_TRY_STATUS(
      write_external(model, weights, output.filename().string() + kDataSuffix, linked, data, proto));
  if (data.size() > 0 || !linked) WEFT_TRY_STATUS(data.commit());
  return proto;
}

}  // namespace

Status write_model(const OnnxModel& model, const TrainedTensors& tensors, const fs::path& output) {
  WEFT_TRY_STATUS(check_names(model, tensors));
  const NewWeights weights(model, tensors);
  WEFT_TRY(pb::ModelProto proto, proto_of(model, tensors, weights, /*linked=*/std::nullopt, output));
  WEFT_TRY_STATUS(store_constants(model, weights, proto));
  return write_file(model, weights, proto, output);
}

namespace {

Result<WrittenFiles> write_with_twin(const OnnxModel& model, const TrainedTensors& trained,
                                     const std::optional<std::string>& linked, const fs::path& output) {
  WEFT_TRY_STATUS(check_names(model, trained));
  WrittenFiles files{output, inference_path(output)};
  const NewWeights weights(model, trained);
  WEFT_TRY(pb::ModelProto proto, proto_of(model, trained, weights, linked, output));
  pb::ModelProto twin = proto;
  WEFT_TRY_STATUS(store_constants(model, weights, proto));
  WEFT_TRY_STATUS(write_file(model, weights, proto, files.trained));
  WEFT_TRY_STATUS(to_inference_mode(model.opset(), find_instance_norms(model.structure()), twin));
  WEFT_TRY_STATUS(store_constants(model, weights, twin));
  WEFT_TRY_STATUS(write_file(model, weights, twin, files.inference));
  return files;
}

}  // namespace

Result<WrittenFiles> write_trained_tensors(const OnnxModel& model, const TrainedTensors& trained,
                                           const fs::path& output) {
  return write_with_twin(model, trained, /*linked=*/std::nullopt, output);
}

Result<WrittenFiles> write_beside(const OnnxModel& model, const fs::path& folder,
                                  const TrainedTensors& trained, const fs::path& output) {
  WEFT_TRY(const std::string linked, folder_beside(folder, output));
  return write_with_twin(model, trained, linked, output);
}

Result<std::string> folder_beside(const fs::path& folder, const fs::path& output) {
  const auto whole = [](const fs::path& path) {
    std::error_code code;  // what is not there is told by who opens it
    return fs::weakly_canonical(path.empty() ? fs::path(".") : path, code);
  };
  const fs::path at = whole(folder).lexically_relative(whole(output.parent_path()));
  if (at.empty() || *at.begin() == "..")
    return fail(ErrorCode::InvalidArgument, "the model's data lies in '" + whole(folder).string() +
                                                "', which is not the folder of '" + output.string() +
                                                "' or beneath it");
  return at == "." ? std::string() : at.generic_string() + "/";
}

Result<WrittenFiles> write_trained(const OnnxModel& model, const dag::Weights& trained,
                                   const fs::path& output) {
  return write_trained_tensors(model, in_memory(trained), output);
}

Result<WrittenFiles> write_trained(const fs::path& model, const dag::Weights& trained,
                                   const fs::path& output) {
  WEFT_TRY(const OnnxModel opened, open_model(model));
  return write_trained(opened, trained, output);
}

}  // namespace weft::onnx
