#include "peer/machine/link_streams.h"

#include "base/check.h"

namespace weft::peer {

bool LinkStreams::awaits(uint32_t index) const {
  const auto at = streams_.find(index);
  return at != streams_.end() && !at->second.channel;
}

void LinkStreams::connect(uint32_t index, uint64_t connection, Instant now) {
  WEFT_CHECK(awaits(index));
  streams_[index].channel = LinkChannel{connection, /*relayed=*/false, now};
}

void LinkStreams::accept(uint32_t index, uint64_t connection, Instant now) {
  streams_[index] = {LinkChannel{connection, /*relayed=*/false, now}, /*is_up=*/true};
}

LinkChannel* LinkStreams::find(uint64_t connection) {
  for (auto& [index, stream] : streams_)
    if (stream.channel && stream.channel->number == connection) return &*stream.channel;
  return nullptr;
}

bool LinkStreams::is_up(uint64_t connection) const {
  for (const auto& [index, stream] : streams_)
    if (stream.is_up && stream.channel->number == connection) return true;
  return false;
}

void LinkStreams::set_up(uint64_t connection) {
  for (auto& [index, stream] : streams_)
    if (stream.channel && stream.channel->number == connection) stream.is_up = true;
}

void LinkStreams::drop(uint64_t connection) {
  std::erase_if(streams_, [&](const auto& entry) {
    return entry.second.channel && entry.second.channel->number == connection;
  });
}

std::vector<uint64_t> LinkStreams::connections() const {
  std::vector<uint64_t> numbers;
  for (const auto& [index, stream] : streams_)
    if (stream.channel) numbers.push_back(stream.channel->number);
  return numbers;
}

std::vector<uint64_t> LinkStreams::up() const {
  std::vector<uint64_t> numbers;
  for (const auto& [index, stream] : streams_)
    if (stream.is_up) numbers.push_back(stream.channel->number);
  return numbers;
}

}  // namespace weft::peer
