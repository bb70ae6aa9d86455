#include "peer/service/put_body.h"

#include <algorithm>

namespace weft::peer {

size_t PutBody::next_size() const { return unit_ ? unit_->size() - unit_sent_ : bytes.bytes.size() - sent_; }

void PutBody::pack_next(storage::Packer& packer) {
  if (unit_) return;
  const size_t size = std::min(storage::kPackedUnit, bytes.bytes.size() - sent_);
  const auto part = [&](const net::SharedBytes& whole) { return whole.bytes.subspan(sent_, size); };
  unit_ = std::make_shared<const std::vector<std::byte>>(
      packer.pack(part(bytes), base.owner ? part(base) : std::span<const std::byte>{}));
  unit_sent_ = 0;
  sent_ += size;
  if (sent_ == bytes.bytes.size()) base = {};
}

net::SharedBytes PutBody::next(size_t size) {
  if (!unit_) {
    sent_ += size;
    return {bytes.owner, bytes.bytes.subspan(sent_ - size, size)};
  }
  const auto unit = unit_;
  const net::SharedBytes next{unit, std::span(*unit).subspan(unit_sent_, size)};
  unit_sent_ += size;
  if (unit_sent_ == unit->size()) unit_.reset();
  return next;
}

}  // namespace weft::peer
