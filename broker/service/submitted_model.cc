#include "broker/service/submitted_model.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "broker/service/submitted_files.h"
#include "dag/onnx/outline.h"

namespace weft::broker {

namespace fs = std::filesystem;

// One thread.
class SubmittedModel::PackedFile final : public onnx::RandomAccess {
 public:
  PackedFile(const proto::PackedFile& file, const storage::BlobStore& blobs) : blobs_(blobs) {
    for (const proto::FilePiece& piece : file.pieces) {
      if (piece.size == 0) continue;
      pieces_.push_back({size_, piece});
      size_ += static_cast<int64_t>(piece.size);
    }
  }

  int64_t size() const override { return size_; }

  Status read_at(int64_t offset, std::span<std::byte> bytes) const override {
    if (bytes.empty()) return {};
    for (auto at = piece_at(offset); !bytes.empty(); ++at) {
      const auto within = static_cast<uint64_t>(offset - at->begin);
      const auto part = bytes.first(std::min<size_t>(bytes.size(), at->piece.size - within));
      WEFT_TRY_STATUS(read(at->piece, within, part));
      bytes = bytes.subspan(part.size());
      offset += static_cast<int64_t>(part.size());
    }
    return {};
  }

  std::optional<Digest> blob_at(int64_t offset, int64_t size) const {
    if (offset < 0 || offset >= size_) return std::nullopt;
    const auto at = piece_at(offset);
    const bool fits = at->begin == offset && static_cast<int64_t>(at->piece.size) == size;
    return fits ? at->piece.sha256 : std::nullopt;
  }

 private:
  struct Placed {
    int64_t begin = 0;
    proto::FilePiece piece;
  };
  std::vector<Placed>::const_iterator piece_at(int64_t offset) const {
    const auto after = std::upper_bound(pieces_.begin(), pieces_.end(), offset,
                                        [](int64_t at, const Placed& each) { return at < each.begin; });
    return std::prev(after);
  }

  Status read(const proto::FilePiece& piece, uint64_t within, std::span<std::byte> bytes) const {
    if (!piece.sha256) {
      std::memcpy(bytes.data(), piece.bytes.data() + within, bytes.size());
      return {};
    }
    // What may be read as values is compared with its name. A larger one is passed over, but for the bytes at
    // its ends that a window takes along.
    if (piece.size <= static_cast<uint64_t>(onnx::kOutlineReadMax)) {
      if (whole_of_ != piece.sha256) {
        WEFT_TRY(whole_, blobs_.read(*piece.sha256, piece.size));
        whole_of_ = piece.sha256;
      }
      std::memcpy(bytes.data(), whole_.data() + within, bytes.size());
      return {};
    }
    WEFT_TRY(const auto blob, blobs_.open_blob(*piece.sha256));
    WEFT_TRY(const storage::BlobView view, blob->piece(within, bytes.size()));
    std::copy(view.bytes.begin(), view.bytes.end(), bytes.begin());
    return {};
  }

  const storage::BlobStore& blobs_;
  std::vector<Placed> pieces_;
  int64_t size_ = 0;
  // The blob that was read last: tensors of a file follow one another.
  mutable std::optional<Digest> whole_of_;
  mutable std::vector<std::byte> whole_;
};

SubmittedModel::SubmittedModel(const proto::SubmitJob& submission, std::string path,
                               const storage::BlobStore& blobs)
    : path_(std::move(path)) {
  std::string folder = fs::path(path_).parent_path().generic_string();
  if (!folder.empty()) folder += '/';
  for (const proto::PackedFile& file : submission.files) {
    std::string name = fs::path(file.path).generic_string();
    if (name.starts_with(folder)) files_[std::move(name)] = std::make_shared<const PackedFile>(file, blobs);
  }
}

SubmittedModel::~SubmittedModel() = default;

Result<std::shared_ptr<const onnx::RandomAccess>> SubmittedModel::open(const std::string& path) const {
  const auto file = files_.find(path);
  if (file == files_.end())
    return fail(ErrorCode::NotFound, "'" + path.substr(0, 256) + "' is not a file of the submission");
  return file->second;
}

std::string SubmittedModel::path_beside(const std::string& location) const {
  return (fs::path(path_).parent_path() / location).lexically_normal().generic_string();
}

Result<std::shared_ptr<const onnx::RandomAccess>> SubmittedModel::open_model() { return open(path_); }

Result<std::shared_ptr<const onnx::RandomAccess>> SubmittedModel::open_beside(const std::string& location) {
  if (!is_safe_path(fs::path(location).lexically_normal().generic_string()))
    return fail(ErrorCode::PermissionDenied,
                "external data '" + location.substr(0, 256) + "' is not beneath the model's own folder");
  return open(path_beside(location));
}

std::optional<Digest> SubmittedModel::blob_at(const onnx::OnnxModel::Place& place) const {
  const auto file = files_.find(place.location.empty() ? path_ : path_beside(place.location));
  return file == files_.end() ? std::nullopt : file->second->blob_at(place.offset, place.size);
}

}  // namespace weft::broker
