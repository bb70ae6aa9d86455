#include "broker/service/feed_desk.h"

#include <memory>

#include "proto/codec/codec.h"

namespace weft::broker {

namespace {
constexpr size_t kMicrobatchesMax = 256;  // of one connection at once
}  // namespace

void FeedDesk::expect(proto::JobNumber job, const proto::Secret& key) {
  feeds_[job].key = key;
  feeds_[job].open = false;
}

void FeedDesk::open(proto::JobNumber job, const proto::Secret& key) {
  Feed& feed = feeds_[job];
  feed.key = key;
  feed.open = true;
  for (const auto& [whose, request] : std::exchange(feed.waiting, {})) {
    readers_.at(whose).to_read.push_back(request);
    go_on(whose);
  }
}

void FeedDesk::close(proto::JobNumber job) {
  const auto feed = feeds_.extract(job);
  if (!feed) return;
  for (const auto& [whose, request] : feed.mapped().waiting) {
    --readers_.at(whose).in_work;
    deny(whose, request, {ErrorCode::PermissionDenied, "the run feeds no data any more"});
  }
}

void FeedDesk::get(ConnectionId whose, const proto::GetMicrobatch& request) {
  const auto feed = feeds_.find(request.run);
  if (feed == feeds_.end() || feed->second.key != request.data_key)
    return deny(whose, request, {ErrorCode::PermissionDenied, "the run does not feed data to this peer"});
  Reader& reader = readers_[whose];
  if (++reader.in_work > kMicrobatchesMax)
    return connections_.refuse(whose,
                               {ErrorCode::ResourceExhausted, "too many microbatches are asked for at once"});
  if (!feed->second.open) return feed->second.waiting.emplace_back(whose, request), void();
  reader.to_read.push_back(request);
  go_on(whose);
}

// One after the other, as they are taken: each may be large.
void FeedDesk::go_on(ConnectionId whose) {
  const auto at = readers_.find(whose);
  if (at == readers_.end()) return;
  Reader& reader = at->second;
  if (reader.is_read_for || reader.to_read.empty() || connections_.bytes_queued(whose) >= kQueuedMax) return;
  const proto::GetMicrobatch request = std::move(reader.to_read.front());
  reader.to_read.pop_front();
  reader.is_read_for = true;
  outside_.read(whose, request);
}

void FeedDesk::on_read(ConnectionId whose, const proto::GetMicrobatch& request,
                       const Result<Feeder::Fed>& read) {
  const auto at = readers_.find(whose);
  if (at == readers_.end()) return;
  --at->second.in_work;
  at->second.is_read_for = false;
  if (read)
    send(whose, request, *read);
  else
    deny(whose, request, read.error());
  go_on(whose);
}

void FeedDesk::end(ConnectionId whose) {
  if (readers_.erase(whose) == 0) return;
  for (auto& [job, feed] : feeds_)
    std::erase_if(feed.waiting, [&](const auto& waits) { return waits.first == whose; });
}

void FeedDesk::deny(ConnectionId whose, const proto::GetMicrobatch& request, const Error& why) {
  connections_.send(whose, proto::MicrobatchAnswer{request.request, why.code, why.message, 0, 0});
}

void FeedDesk::send(ConnectionId whose, const proto::GetMicrobatch& request, const Feeder::Fed& fed) {
  connections_.send(whose, proto::MicrobatchAnswer{request.request, ErrorCode::Internal, "",
                                                   fed.sample_position, fed.valid_count});
  for (uint32_t i = 0; i < fed.tensors.size(); ++i) {
    const auto tensor = std::make_shared<const dag::Tensor>(fed.tensors[i]);
    connections_.send_frame(whose, {.kind = static_cast<uint8_t>(proto::FrameKind::Tensor),
                                    .head = proto::encode_header({.run = request.run,
                                                                  .plan_version = 0,
                                                                  .step = request.step,
                                                                  .microbatch = request.microbatch,
                                                                  .edge = i,
                                                                  .program = request.program,
                                                                  .direction = proto::Direction::Forward,
                                                                  .replica = 0,
                                                                  .spec = tensor->spec()}),
                                    .body = {tensor, tensor->bytes()}});
  }
}

}  // namespace weft::broker
