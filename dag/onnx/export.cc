#include "dag/onnx/export.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "dag/onnx/batch_norm.h"
#include "dag/onnx/inference_twin.h"
#include "dag/onnx/structure.h"
#include "dag/onnx/tensor_proto.h"

namespace weft::onnx {
namespace {
namespace fs = std::filesystem;
using Form = OnnxModel::Structure::Form;

constexpr int64_t kExternalAlignment = 64;

// A file that appears under its name when it is complete, and not at all otherwise.
class NewFile {
 public:
  explicit NewFile(fs::path path) : path_(std::move(path)), temporary_(path_.string() + ".partial") {}
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
    const ErrorCode kind = code == ENOSPC || code == EDQUOT                   ? ErrorCode::ResourceExhausted
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

Status check_names(const OnnxModel& model, const dag::Weights& trained) {
  for (const auto& [name, tensor] : trained) {
    const auto found = model.weights().find(name);
    if (found == model.weights().end())
      return fail(ErrorCode::InvalidArgument, "the model has no initializer '" + name + "' to write");
    if (found->second.spec() != tensor.spec())
      return fail(ErrorCode::InvalidArgument, "initializer '" + name + "' is " +
                                                  to_string(found->second.spec()) + " in the model, but " +
                                                  to_string(tensor.spec()) + " is to be written");
  }
  return {};
}

const dag::Tensor& weight(const OnnxModel& model, const dag::Weights& trained, const std::string& name) {
  const auto found = trained.find(name);
  return found != trained.end() ? found->second : model.weights().find(name)->second;
}

Result<std::string> serialise(const pb::ModelProto& proto) {
  if (proto.ByteSizeLong() > ImportLimits{}.file_bytes_max)
    return fail(ErrorCode::ResourceExhausted,
                "the trained model exceeds protobuf's 2 GiB; use external data");
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    if (!proto.SerializeToCodedStream(&coded))
      return fail(ErrorCode::Internal, "protobuf cannot serialise the model");
  }
  return bytes;
}

// Puts data into the proto, and what lives outside into `data`, under `location`.
Status store_weights(const OnnxModel& model, const dag::Weights& trained, const std::string& location,
                     NewFile* data, pb::ModelProto& proto) {
  auto& initializers = *proto.mutable_graph()->mutable_initializer();
  for (int i = 0; i < initializers.size(); ++i) {
    auto& initializer = initializers[i];
    const dag::Tensor& tensor = weight(model, trained, initializer.name());
    const Form form = model.structure().forms[static_cast<size_t>(i)];
    if (form != Form::External) {
      // Booleans were normalised on reading; integers and booleans are not trained, so either form is theirs
      // already.
      store_in_proto(tensor, form == Form::Raw, initializer);
      continue;
    }
    if (!data)
      return fail(ErrorCode::Unsupported, "a model with external data cannot be written as one piece");
    static constexpr std::byte kZeros[kExternalAlignment]{};
    const int64_t padding = (kExternalAlignment - data->size() % kExternalAlignment) % kExternalAlignment;
    WEFT_TRY_STATUS(data->write(std::span(kZeros).first(static_cast<size_t>(padding))));
    initializer.clear_external_data();
    const auto add = [&](const char* key, std::string value) {
      auto* entry = initializer.add_external_data();
      entry->set_key(key);
      entry->set_value(std::move(value));
    };
    add("location", location);
    add("offset", std::to_string(data->size()));
    add("length", std::to_string(tensor.bytes().size()));
    WEFT_TRY_STATUS(data->write(tensor.bytes()));
  }
  return {};
}

// Constant nodes, which the inference twin may have fewer of.
void store_constants(const OnnxModel& model, const dag::Weights& trained, pb::ModelProto& proto) {
  const auto& forms = model.structure().constants;
  for (auto& node : *proto.mutable_graph()->mutable_node()) {
    if (node.op_type() != "Constant" || node.output_size() != 1) continue;
    const auto form = forms.find(node.output(0));
    if (form == forms.end()) continue;
    store_in_proto(weight(model, trained, node.output(0)), form->second == Form::Raw,
                   *node.mutable_attribute(0)->mutable_t());
  }
}

Status write_one(const OnnxModel& model, const dag::Weights& trained, const fs::path& path, bool inference) {
  pb::ModelProto proto = model.structure().proto;
  if (inference)
    WEFT_TRY_STATUS(to_inference_mode(model.opset(), find_instance_norms(model.structure()), proto));
  const std::string location = path.filename().string() + ".data";
  NewFile data(path.string() + ".data");
  const bool external = model.has_external_data();
  if (external) WEFT_TRY_STATUS(data.open());
  WEFT_TRY_STATUS(store_weights(model, trained, location, external ? &data : nullptr, proto));
  store_constants(model, trained, proto);
  WEFT_TRY(const std::string bytes, serialise(proto));
  NewFile file(path);
  WEFT_TRY_STATUS(file.open());
  WEFT_TRY_STATUS(file.write(std::as_bytes(std::span(bytes.data(), bytes.size()))));
  if (external) WEFT_TRY_STATUS(data.commit());
  return file.commit();
}

}  // namespace

fs::path inference_path(const fs::path& trained) {
  fs::path path = trained;
  path.replace_extension();
  return path.string() + ".inference.onnx";
}

Result<std::string> trained_bytes(const OnnxModel& model, const dag::Weights& trained) {
  WEFT_TRY_STATUS(check_names(model, trained));
  pb::ModelProto proto = model.structure().proto;
  WEFT_TRY_STATUS(store_weights(model, trained, "", nullptr, proto));
  store_constants(model, trained, proto);
  return serialise(proto);
}

Result<WrittenFiles> write_trained(const OnnxModel& model, const dag::Weights& trained,
                                   const fs::path& output) {
  WEFT_TRY_STATUS(check_names(model, trained));
  const WrittenFiles files{output, inference_path(output)};
  WEFT_TRY_STATUS(write_one(model, trained, files.trained, false));
  WEFT_TRY_STATUS(write_one(model, trained, files.inference, true));
  return files;
}

Result<WrittenFiles> write_trained(const fs::path& model, const dag::Weights& trained, const fs::path& output,
                                   const ImportLimits& limits) {
  WEFT_TRY(const OnnxModel read, read_model(model, limits));
  return write_trained(read, trained, output);
}

}  // namespace weft::onnx
