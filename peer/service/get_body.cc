#include "peer/service/get_body.h"

#include <exception>

#include "proto/codec/codec.h"

namespace weft::peer {

Status GetBody::begin(const Form& form) {
  has_begun_ = true;
  size_ = form.size;
  try {
    if (!sink_) bytes_->reserve(form.size);
  } catch (const std::exception&) {  // bad_alloc, length_error
    return fail(ErrorCode::ResourceExhausted,
                "no memory for a blob of " + std::to_string(form.size) + " bytes");
  }
  if (!form.has_base) base_ = {};
  if (form.is_packed) unpacker_ = std::make_unique<storage::Unpacker>(form.size, base_.bytes);
  return {};
}

bool GetBody::expects(size_t chunk) const {
  return has_begun_ && (unpacker_ || chunk <= size_ - (sink_ ? handed_on_ : bytes_->size()));
}

Status GetBody::take(std::span<const std::byte> chunk, size_t placed) {
  if (sink_) {
    hash_->update(chunk);
    handed_on_ += chunk.size();
    return sink_(chunk);
  }
  if (unpacker_) return unpack(chunk);
  bytes_->insert(bytes_->end(), chunk.begin(), chunk.end());
  hash_->update(std::span(*bytes_).last(placed + chunk.size()));
  return {};
}

// A chunk ends at most one unit that began before it, and one of its own: little work for few bytes.
Status GetBody::unpack(std::span<const std::byte> chunk) {
  std::vector<std::byte>& bytes = *bytes_;
  const size_t size_max = bytes.size() + 2 * storage::kPackedUnit;
  return unpacker_->take(chunk, [&](std::span<const std::byte> unpacked) -> Status {
    if (bytes.size() + unpacked.size() > size_max)
      return fail(ErrorCode::Corrupted, "a chunk with more than one unit of a packed blob");
    bytes.insert(bytes.end(), unpacked.begin(), unpacked.end());
    hash_->update(unpacked);
    return {};
  });
}

net::PayloadPlace GetBody::place(size_t head_size, size_t size) {
  if (!has_begun_ || unpacker_ || sink_) return {};
  if (size > proto::kChunkSizeMax || size > size_ - bytes_->size()) return {};
  const size_t begin = bytes_->size();
  bytes_->resize(begin + size);
  return {head_size, std::shared_ptr<std::byte[]>(bytes_, bytes_->data() + begin)};
}

}  // namespace weft::peer
