#include "net/frame_reader.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "base/check.h"
#include "net/tls.h"

namespace weft::net {

FrameReader::Next FrameReader::next() const {
  switch (inside_) {
    case Inside::Header:
      return held() >= kFrameHeaderSize ? Next::BeginFrame : Next::Receive;
    case Inside::Head:
      return held() >= std::min(size_, kFrameHeadSize) ? Next::BeginPayload : Next::Receive;
    case Inside::Payload:
      if (received_ == size_) return Next::Deliver;
      return held() > 0 ? Next::TakeHeld : Next::Receive;
  }
  return Next::Receive;
}

Status FrameReader::begin_frame(size_t size_max) {
  uint32_t size = 0;
  for (size_t i = 4; i-- > 0;) size = size << 8 | std::to_integer<uint32_t>(record_[record_begin_ + i]);
  if (size > size_max)
    return fail(ErrorCode::ResourceExhausted, "a frame of " + std::to_string(size) +
                                                  " bytes was announced, the limit is " +
                                                  std::to_string(size_max));
  frame_.kind = std::to_integer<uint8_t>(record_[record_begin_ + 4]);
  record_begin_ += kFrameHeaderSize;
  size_ = size;
  received_ = 0;
  inside_ = Inside::Head;
  return {};
}

std::span<const std::byte> FrameReader::head() const {
  return {record_.get() + record_begin_, std::min(size_, kFrameHeadSize)};
}

Status FrameReader::begin_payload(PayloadPlace place, size_t at_once) {
  inside_ = Inside::Payload;
  if (!place.body) return hold(std::min(size_, at_once));
  WEFT_CHECK(place.head_size <= head().size());
  frame_.body = std::move(place.body);
  frame_.body_size = size_ - place.head_size;
  WEFT_TRY_STATUS(hold(place.head_size));
  std::memcpy(frame_.payload.span().data(), head().data(), place.head_size);
  record_begin_ += place.head_size;
  received_ = place.head_size;
  return {};
}

Status FrameReader::take_held() {
  WEFT_TRY(const std::span<std::byte> into, payload_room());
  const size_t size = std::min(held(), into.size());
  std::memcpy(into.data(), record_.get() + record_begin_, size);
  record_begin_ += size;
  received_ += size;
  return {};
}

Result<std::span<std::byte>> FrameReader::room() {
  return inside_ == Inside::Payload ? payload_room() : record_room();
}

void FrameReader::received(size_t size) { (inside_ == Inside::Payload ? received_ : record_end_) += size; }

// Behind what is held there: less than a header and a head.
std::span<std::byte> FrameReader::record_room() {
  if (!record_)
    record_ = std::make_unique_for_overwrite<std::byte[]>(kTlsRecordSize + kFrameHeaderSize + kFrameHeadSize);
  const size_t size = held();
  if (size > 0) std::memmove(record_.get(), record_.get() + record_begin_, size);
  record_begin_ = 0;
  record_end_ = size;
  return {record_.get() + size, kTlsRecordSize};
}

Result<std::span<std::byte>> FrameReader::payload_room() {
  const size_t size = frame_.payload.size();
  if (frame_.body) return std::span(frame_.body.get() + (received_ - size), size_ - received_);
  if (received_ == size) WEFT_TRY_STATUS(hold(std::min(size_, std::max(2 * size, kPayloadAtOnce))));
  return frame_.payload.span().subspan(received_);
}

Status FrameReader::hold(size_t size) {
  try {
    Buffer larger(size);
    if (received_ > 0) std::memcpy(larger.span().data(), frame_.payload.span().data(), received_);
    frame_.payload = std::move(larger);
    return {};
  } catch (const std::bad_alloc&) {
    return tl::unexpected<Error>(no_memory());
  }
}

InFrame FrameReader::take() {
  inside_ = Inside::Header;
  return std::exchange(frame_, {});
}

Error FrameReader::no_memory() const {
  return {ErrorCode::ResourceExhausted, "no memory for a frame of " + std::to_string(size_) + " bytes"};
}

}  // namespace weft::net
