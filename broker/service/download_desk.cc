#include "broker/service/download_desk.h"

#include <algorithm>

#include "proto/codec/codec.h"

namespace weft::broker {

namespace {
constexpr size_t kDownloadsMax = 4096;  // asked for and not begun, of one connection
}  // namespace

void DownloadDesk::get(ConnectionId to, const proto::GetBlob& request, Instant now) {
  Taker& taker = takers_[to];
  if (taker.loads.waiting.size() + taker.spares.waiting.size() >= kDownloadsMax)
    return connections_.refuse(to, {ErrorCode::ResourceExhausted, "too many blobs are asked for at once"});
  const bool is_load = request.rate == 0;
  (is_load ? taker.loads : taker.spares).waiting.push_back(request);
  if (is_load) return send_loads(to, now);
  want_spare_turn(to, now);
}

void DownloadDesk::go_on(ConnectionId to, Instant now) {
  send_loads(to, now);
  want_spare_turn(to, now);
}

void DownloadDesk::end(ConnectionId to) {
  const auto taker = takers_.extract(to);
  if (taker && taker.mapped().has_spare_turn) std::erase(spare_turns_, to);
}

// The next blob that is there. False: there is none, or no room for it.
bool DownloadDesk::begin(ConnectionId to, Downloads& downloads) {
  while (!downloads.now) {
    if (downloads.waiting.empty() || connections_.bytes_queued(to) >= kQueuedMax) return false;
    const proto::GetBlob request = downloads.waiting.front();
    downloads.waiting.pop_front();
    auto blob = blobs_.open_blob(request.sha256);
    if (!blob) {
      connections_.send(to, proto::BlobAnswer{request.request, blob.error().code, blob.error().message, 0});
      continue;
    }
    const uint64_t size = (*blob)->size();
    connections_.send(to, proto::BlobAnswer{request.request, ErrorCode::Internal, "", size});
    if (size > 0) downloads.now = {request.request, std::move(*blob)};
  }
  return true;
}

// The next piece of a blob. False: there is nothing to send, no room for it, or nobody there any more.
bool DownloadDesk::send_piece(ConnectionId to, Downloads& downloads, Instant now) {
  if (!begin(to, downloads) || connections_.bytes_queued(to) >= kQueuedMax) return false;
  Download& at = *downloads.now;
  const auto size = static_cast<size_t>(std::min<uint64_t>(proto::kChunkSizeMax, at.blob->size() - at.done));
  const auto piece = at.blob->piece(at.done, size);
  if (!piece) {  // what was promised cannot be kept
    connections_.refuse(to, piece.error());
    return false;
  }
  connections_.send_frame(to, {.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                               .head = proto::encode_chunk_head(at.request),
                               .body = {piece->owner, piece->bytes}});
  egress_.take(now, size);
  at.done += size;
  if (at.done == at.blob->size()) downloads.now.reset();
  return true;
}

void DownloadDesk::send_loads(ConnectionId to, Instant now) {
  const auto taker = takers_.find(to);
  if (taker == takers_.end()) return;
  while (send_piece(to, taker->second.loads, now)) {
  }
}

void DownloadDesk::want_spare_turn(ConnectionId to, Instant now) {
  const auto taker = takers_.find(to);
  if (taker == takers_.end() || taker->second.has_spare_turn || taker->second.spares.is_empty()) return;
  taker->second.has_spare_turn = true;
  spare_turns_.push_back(to);
  send_spares(now);
}

// A piece each, when the line has carried what went before.
void DownloadDesk::send_spares(Instant now) {
  while (!spare_turns_.empty()) {
    if (const Duration wait = egress_.wait(now); wait > Duration{}) return outside_.spare_turn_in(wait);
    const ConnectionId to = spare_turns_.front();
    spare_turns_.pop_front();
    Taker& taker = takers_.at(to);
    taker.has_spare_turn = false;
    if (!taker.loads.is_empty()) continue;  // comes again, drained
    if (!send_piece(to, taker.spares, now) || taker.spares.is_empty()) continue;
    taker.has_spare_turn = true;
    spare_turns_.push_back(to);
  }
}

}  // namespace weft::broker
