#include "peer/service/blob_server.h"

#include <algorithm>
#include <utility>

#include "peer/service/bulk.h"
#include "proto/codec/codec.h"

namespace weft::peer {

namespace {
constexpr size_t kRequestSizeMax = 4 << 10;  // bytes of a frame: a GetBlob is far smaller
constexpr size_t kQueuedMax = 2 << 20;       // bytes on their way to one asker before more are made
constexpr size_t kUnsentMax = 128 << 10;     // bytes in a socket's buffer, behind which tensors would wait
constexpr Duration kGoodbye = std::chrono::seconds(1);
// The pace of the others waits for what has been sent to leave this machine; not for who takes nothing.
constexpr Duration kTakesNothing = std::chrono::seconds(1);
// A burst a second, and one in 20 s while tensors wait: within the patience of an honest asker.
constexpr uint64_t kRateMin = 4 << 10;
constexpr Duration kWaitMax = std::chrono::milliseconds(250);  // then the rate may be another
constexpr Duration kAsleep = std::chrono::seconds(2);          // between two ticks: this process did not run
}  // namespace

struct BlobServer::Asker {
  // The blob that is being sent.
  struct Giving {
    Digest sha256{};
    uint64_t request = 0, rate = 0;
    net::SharedBytes bytes{}, base{};  // until all of it is packed, or given to the connection
    size_t size = 0;
    bool packs = false;
    size_t taken = 0;  // bytes of the blob that were given to the connection, or to be packed
    bool is_packing = false;
    std::deque<std::shared_ptr<const std::vector<std::byte>>> units{};  // what is being sent, and one ahead
    size_t unit_sent = 0;                                               // bytes of the first
    bool is_sent() const { return taken == size && units.empty() && !is_packing; }
  };
  bool has_room() const { return connection->stats().bytes_queued < kQueuedMax; }
  bool is_idle() const { return waiting.empty() && !is_looked_up && !giving; }
  bool is_stranger() const { return missed > 0 && !was_given; }
  size_t chunk_left() const;
  void send_chunk(size_t size);
  void send(net::OutFrame frame);

  net::ConnectionPtr connection{};
  std::deque<proto::GetBlob> waiting{};
  bool is_looked_up = false;  // the request before those
  std::optional<Giving> giving{};
  bool was_given = false;  // a blob, at some time
  size_t missed = 0;       // requests for what is not here
  Pacer pacer{};           // of its own requests
  std::unique_ptr<net::Loop::Timer> timer{};
  int64_t given = 0, left = 0;   // bytes that the connection was given; of which have left this machine
  Instant progressed{}, used{};  // when some left last, or nothing was queued; when it had a request last
};

size_t BlobServer::Asker::chunk_left() const {
  const size_t left =
      giving->packs ? giving->units.front()->size() - giving->unit_sent : giving->size - giving->taken;
  return std::min(proto::kChunkSizeMax, left);
}

// REQUIRES: a unit, where it is packed.
void BlobServer::Asker::send_chunk(size_t size) {
  Giving& from = *giving;
  net::OutFrame frame{.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
                      .head = proto::encode_chunk_head(from.request)};
  if (from.packs) {
    const auto unit = from.units.front();
    frame.body = {unit, std::span(*unit).subspan(from.unit_sent, size)};
    from.unit_sent += size;
    if (from.unit_sent == unit->size()) from.units.pop_front(), from.unit_sent = 0;
  } else {
    frame.body = {from.bytes.owner, from.bytes.bytes.subspan(from.taken, size)};
    from.taken += size;
  }
  if (from.is_sent()) giving.reset();
  send(std::move(frame));
}

void BlobServer::Asker::send(net::OutFrame frame) {
  given += static_cast<int64_t>(frame.payload_size());
  connection->send(std::move(frame));
}

BlobServer::BlobServer(Options options) : options_(std::move(options)), ticked_(now()) {}

BlobServer::~BlobServer() = default;

// ---- who asks

std::optional<net::Connection::Handlers> BlobServer::offer(const net::ConnectionPtr& connection,
                                                           const proto::GetBlob& first) {
  if (!make_room()) return std::nullopt;
  net::ConnectionLimits limits;
  limits.frame_size_max = kRequestSizeMax;
  limits.unsent_max = kUnsentMax;
  connection->set_limits(limits);
  const auto asker = std::make_shared<Asker>();
  asker->connection = connection;
  asker->progressed = asker->used = now();
  askers_.push_back(asker);
  on_request(asker, first);
  const std::weak_ptr<Asker> weak = asker;
  return net::Connection::Handlers{.on_frame =
                                       [this, weak](const net::InFrame& frame) {
                                         if (const AskerPtr here = weak.lock()) on_frame(here, frame);
                                       },
                                   .on_closed =
                                       [this, weak](const Error&) {
                                         if (const AskerPtr here = weak.lock()) drop(here);
                                       },
                                   .on_drained =
                                       [this, weak] {
                                         if (const AskerPtr here = weak.lock()) work(here);
                                       }};
}

// For one more.
bool BlobServer::make_room() {
  if (askers_.size() < options_.connections_max) return true;
  const auto stranger = std::find_if(askers_.begin(), askers_.end(),
                                     [](const AskerPtr& asker) { return asker->is_stranger(); });
  if (stranger == askers_.end()) return false;
  drop(*stranger);
  return true;
}

void BlobServer::on_frame(const AskerPtr& asker, const net::InFrame& frame) {
  const auto message = frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)
                           ? proto::decode(frame.payload.span())
                           : fail(ErrorCode::InvalidArgument, "not a message");
  const auto* request = message ? std::get_if<proto::GetBlob>(&*message) : nullptr;
  if (request == nullptr || asker->waiting.size() >= options_.requests_max) return drop(asker);
  on_request(asker, *request);
}

void BlobServer::on_request(const AskerPtr& asker, const proto::GetBlob& request) {
  asker->waiting.push_back(request);
  if (request.rate == 0) {  // what stands before it waits no longer
    asker->timer.reset();
    std::erase(turns_, asker);
  }
  work(asker);
}

void BlobServer::drop(const AskerPtr& asker, Duration goodbye) {
  // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): `asker` may be an element of what is erased
  const AskerPtr kept = asker;
  kept->connection->close(goodbye);
  kept->timer.reset();
  std::erase(turns_, kept);
  std::erase(askers_, kept);
}

// ---- a request's turn

void BlobServer::work(const AskerPtr& asker) {
  advance(asker);
  take_turns();
}

// As far as it goes without waiting.
void BlobServer::advance(const AskerPtr& asker) {
  while (asker->has_room()) {
    if (!asker->giving) return look_up(asker);
    pack_ahead(asker);
    if (asker->giving->packs && asker->giving->units.empty()) return;
    if (rate_of(*asker) != 0) return await_turn(asker);
    send_chunk(asker, asker->chunk_left());
  }
}

void BlobServer::send_chunk(const AskerPtr& asker, size_t size) {
  const Digest sha256 = asker->giving->sha256;
  asker->send_chunk(size);
  if (options_.on_giving) options_.on_giving(sha256, !asker->giving);
}

void BlobServer::look_up(const AskerPtr& asker) {
  if (asker->is_looked_up || asker->waiting.empty()) return;
  asker->is_looked_up = true;
  const proto::GetBlob request = asker->waiting.front();
  asker->waiting.pop_front();
  options_.look_up(request, [this, weak = std::weak_ptr(asker), request](HeldBlob held) {
    const AskerPtr here = weak.lock();
    if (!here) return;
    here->is_looked_up = false;
    if (held.bytes.owner)
      on_found(here, request, std::move(held));
    else
      on_missing(here, request);
  });
}

void BlobServer::on_missing(const AskerPtr& asker, const proto::GetBlob& request) {
  asker->send(message_frame(proto::BlobAnswer{.request = request.request,
                                              .code = ErrorCode::NotFound,
                                              .message = "the peer does not have this blob"}));
  if (++asker->missed >= options_.requests_max && asker->is_stranger()) return drop(asker, kGoodbye);
  work(asker);
}

void BlobServer::on_found(const AskerPtr& asker, const proto::GetBlob& request, HeldBlob held) {
  Asker::Giving giving{.sha256 = request.sha256,
                       .request = request.request,
                       .rate = request.rate,
                       .bytes = std::move(held.bytes)};
  giving.size = giving.bytes.bytes.size();
  giving.packs = giving.size >= storage::kWorthPacking;
  if (giving.packs && request.base && held.base.owner && held.base.bytes.size() == giving.size)
    giving.base = std::move(held.base);
  asker->was_given = true;
  asker->send(message_frame(proto::BlobAnswer{.request = request.request,
                                              .size = giving.size,
                                              .packed = giving.packs,
                                              .has_base = giving.base.owner != nullptr}));
  if (giving.size > 0)
    asker->giving = std::move(giving);
  else if (options_.on_giving)
    options_.on_giving(request.sha256, /*whole=*/true);
  work(asker);
}

// One unit ahead of what is sent.
void BlobServer::pack_ahead(const AskerPtr& asker) {
  Asker::Giving& giving = *asker->giving;
  if (!giving.packs || giving.is_packing || giving.units.size() > 1 || giving.taken == giving.size) return;
  giving.is_packing = true;
  const size_t size = std::min(storage::kPackedUnit, giving.size - giving.taken);
  const auto part = [&](const net::SharedBytes& whole) {
    return net::SharedBytes{whole.owner, whole.bytes.subspan(giving.taken, size)};
  };
  const net::SharedBytes bytes = part(giving.bytes);
  const net::SharedBytes base = giving.base.owner ? part(giving.base) : net::SharedBytes{};
  giving.taken += size;
  if (giving.taken == giving.size) giving.bytes = giving.base = {};
  if (!worker_) worker_ = std::make_unique<net::Worker>();
  worker_->post([this, loop = options_.loop, packer = packer_, weak = std::weak_ptr(asker), bytes, base] {
    loop->post([this, weak, unit = packer->pack(bytes.bytes, base.bytes)]() mutable {
      if (const AskerPtr here = weak.lock()) on_packed(here, std::move(unit));
    });
  });
}

void BlobServer::on_packed(const AskerPtr& asker, std::vector<std::byte> unit) {
  asker->giving->is_packing = false;
  asker->giving->units.push_back(std::make_shared<const std::vector<std::byte>>(std::move(unit)));
  work(asker);
}

// ---- the pace

// Zero: at once, as also what stands before a request that cannot wait.
uint64_t BlobServer::rate_of(const Asker& asker) const {
  const bool is_urgent =
      asker.giving->rate == 0 || std::any_of(asker.waiting.begin(), asker.waiting.end(),
                                             [](const proto::GetBlob& request) { return request.rate == 0; });
  if (is_urgent) return 0;
  const uint64_t rate = rate_ != 0 ? std::min(asker.giving->rate, rate_) : asker.giving->rate;
  return std::max(rate, kRateMin);
}

// Each keeps to its own rate, so that a slow one holds up nobody; then it has its turn on the line.
void BlobServer::await_turn(const AskerPtr& asker) {
  if (asker->timer || std::find(turns_.begin(), turns_.end(), asker) != turns_.end()) return;
  const Duration wait = asker->pacer.wait(now(), rate_of(*asker));
  if (wait <= Duration{}) return turns_.push_back(asker);
  asker->timer = options_.loop->after(std::min(wait, kWaitMax), [this, weak = std::weak_ptr(asker)] {
    const AskerPtr here = weak.lock();
    if (!here) return;
    here->timer.reset();
    work(here);
  });
}

void BlobServer::take_turns() {
  while (!turns_.empty() && !turn_timer_) {
    const uint64_t rate = line_rate();
    const CopyPacer::Line line = this->line();
    if (const Duration wait = pacer_.wait(now(), rate, line); wait > Duration{}) {
      turn_timer_ = options_.loop->after(wait, [this] {
        turn_timer_.reset();
        take_turns();
      });
      return;
    }
    const AskerPtr asker = turns_.front();
    turns_.pop_front();
    const size_t size = pacer_.take(now(), asker->chunk_left(), rate, line);
    asker->pacer.take(now(), size, rate_of(*asker));
    send_chunk(asker, size);
    advance(asker);
  }
}

uint64_t BlobServer::line_rate() const {
  uint64_t rate = 0;
  for (const AskerPtr& asker : turns_) rate = std::max(rate, rate_of(*asker));
  return rate;
}

CopyPacer::Line BlobServer::line() const {
  CopyPacer::Line line{.urgent = options_.yields && options_.yields()};
  for (const AskerPtr& asker : askers_)
    if (now() - asker->progressed < kTakesNothing) line.unsent += asker->connection->unsent();
  return line;
}

// ---- time

void BlobServer::on_tick() {
  const Instant at = now();
  // Who slept has seen nothing leave, and cannot blame the others for it.
  if (at - ticked_ > kAsleep)
    for (const AskerPtr& asker : askers_) asker->progressed += at - ticked_;
  ticked_ = at;
  for (const AskerPtr& asker : std::vector(askers_)) look_after(asker, at);
}

void BlobServer::look_after(const AskerPtr& asker, Instant at) {
  const size_t unsent = asker->connection->unsent();
  const int64_t left = asker->given - static_cast<int64_t>(unsent);
  if (unsent == 0 || left > asker->left) {
    asker->left = left;
    asker->progressed = at;
  }
  if (!asker->is_idle() || unsent > 0) asker->used = at;
  const Duration idle_deadline = asker->is_stranger() ? options_.stranger_deadline : options_.idle_deadline;
  if (at - asker->progressed >= options_.stall_deadline || at - asker->used >= idle_deadline) drop(asker);
}

}  // namespace weft::peer
