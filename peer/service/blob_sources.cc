#include "peer/service/blob_sources.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "proto/codec/codec.h"

namespace weft::peer {

namespace {
constexpr size_t kFrameSizeMax = proto::kChunkSizeMax + (16 << 10);  // a chunk, or an answer
constexpr Duration kAsleep = std::chrono::seconds(2);  // between two ticks: this process did not run
}  // namespace

struct BlobSources::Source {
  explicit Source(proto::BlobSource what) : named(std::move(what)) {}
  bool is_idle() const { return waiting.empty() && transfers.under_way() == 0; }

  const proto::BlobSource named;
  size_t address = 0;      // that is dialled
  std::string problems{};  // of those before it
  std::unique_ptr<net::Attempt> attempt{};
  net::ConnectionPtr connection{};
  struct Waiting {
    Wanted wanted;
    Done done;
  };
  std::deque<Waiting> waiting{};  // not asked for yet
  BulkTransfers transfers{[this](net::OutFrame frame) { connection->send(std::move(frame)); }};
  bool was_given = false;  // a blob, at some time
  bool has_lied = false;
  Instant heard{}, used{};  // when bytes came last; when something was under way last
  uint64_t bytes_heard = 0;
};

BlobSources::BlobSources(Options options) : options_(std::move(options)) {}

BlobSources::~BlobSources() { abandon({ErrorCode::Cancelled, "the transfer was given up"}); }

void BlobSources::get(const proto::BlobSource& source, Wanted wanted, Done done) {
  auto at = sources_.find(source.peer);
  if (at == sources_.end()) {
    if (!make_room()) return done(fail(ErrorCode::Unavailable, "too many peers are asked at once"));
    if (sources_.empty()) ticked_ = now();
    at = sources_.emplace(source.peer, std::make_shared<Source>(source)).first;
    dial(at->second);
  }
  // Whoever is asked after a while has its time from now on.
  const SourcePtr asked = at->second;
  if (asked->is_idle()) asked->heard = asked->used = now();
  asked->waiting.push_back({std::move(wanted), std::move(done)});
  ask(asked);
}

// For one more: a connection that nobody uses goes.
bool BlobSources::make_room() {
  if (sources_.size() < options_.sources_max) return true;
  const auto idle = std::find_if(sources_.begin(), sources_.end(),
                                 [](const auto& entry) { return entry.second->is_idle(); });
  if (idle == sources_.end()) return false;
  end(SourcePtr(idle->second), {ErrorCode::Cancelled, "not used"});
  return true;
}

// ---- the connection

void BlobSources::dial(const SourcePtr& source) {
  const std::vector<std::string>& addresses = source->named.addresses;
  for (; source->address < addresses.size(); ++source->address) {
    const auto endpoint = net::parse_endpoint(addresses[source->address]);
    if (!endpoint) {
      source->problems += "; " + endpoint.error().message;
      continue;
    }
    net::ConnectOptions options;
    options.identity = options_.identity;
    options.expected = source->named.peer;
    options.deadline = options_.address_deadline;
    options.may_dial = options_.may_dial;
    if (options_.shape) options.shape = options_.shape(source->named.region);
    source->attempt = net::connect(*options_.loop, *endpoint, options,
                                   [this, weak = std::weak_ptr(source)](Result<net::ConnectionPtr> result) {
                                     if (const SourcePtr here = weak.lock())
                                       on_dialled(here, std::move(result));
                                   });
    return;
  }
  // Not from within get(): its request is not there yet.
  options_.loop->post([this, weak = std::weak_ptr(source)] {
    const SourcePtr here = weak.lock();
    if (here) end(here, {ErrorCode::Unavailable, "there is no way to it" + here->problems});
  });
}

void BlobSources::on_dialled(const SourcePtr& source, Result<net::ConnectionPtr> result) {
  const auto attempt = std::move(source->attempt);  // this is its callback
  if (!result) {
    source->problems += "; " + result.error().message;
    ++source->address;
    return dial(source);
  }
  source->connection = std::move(*result);
  start(source);
  ask(source);
}

void BlobSources::start(const SourcePtr& source) {
  net::ConnectionLimits limits;
  limits.frame_size_max = kFrameSizeMax;
  source->connection->set_limits(limits);
  source->heard = source->used = now();
  const std::weak_ptr<Source> weak = source;
  source->connection->start({.on_frame =
                                 [this, weak](const net::InFrame& frame) {
                                   if (const SourcePtr here = weak.lock()) on_frame(here, frame);
                                 },
                             .on_closed =
                                 [this, weak](const Error& error) {
                                   if (const SourcePtr here = weak.lock())
                                     end(here, {ErrorCode::Unavailable, error.message});
                                 },
                             .on_head = [weak](uint8_t kind, size_t size,
                                               std::span<const std::byte> head) -> Result<net::PayloadPlace> {
                               const SourcePtr here = weak.lock();
                               return here ? here->transfers.place(kind, size, head) : net::PayloadPlace{};
                             }});
}

// Who ends a source has taken it out first: what is told may ask anew.
void BlobSources::end(const SourcePtr& source, const Error& error) {
  const auto at = sources_.find(source->named.peer);
  if (at == sources_.end() || at->second != source) return;
  sources_.erase(at);
  if (source->connection) source->connection->close();
  const Error told = error.within("peer " + to_string(source->named.peer));
  const auto waiting = std::exchange(source->waiting, {});
  source->transfers.fail_all(told);
  for (const Source::Waiting& one : waiting) one.done(fail(told));
}

void BlobSources::abandon(const Error& error) {
  for (const auto& [peer, source] : std::map(sources_)) end(source, error);
}

// ---- requests

void BlobSources::ask(const SourcePtr& source) {
  while (source->connection && !source->waiting.empty() &&
         source->transfers.under_way() < options_.at_once_max) {
    Source::Waiting next = std::move(source->waiting.front());
    source->waiting.pop_front();
    const BulkTransfers::GetOptions options{
        .rate = next.wanted.rate, .is_from_peer = true, .base = std::move(next.wanted.base)};
    source->transfers.get(
        next.wanted.sha256, next.wanted.size_max, options,
        [weak = std::weak_ptr(source), done = std::move(next.done)](Result<std::vector<std::byte>> bytes) {
          const SourcePtr here = weak.lock();
          if (here && bytes) here->was_given = true;
          if (here && !bytes && bytes.error().code == ErrorCode::Corrupted) here->has_lied = true;
          done(std::move(bytes));
        });
  }
}

void BlobSources::on_frame(const SourcePtr& source, const net::InFrame& frame) {
  const Status taken = take(*source, frame);
  if (!taken) return end(source, {ErrorCode::Corrupted, taken.error().message});
  if (source->has_lied) return end(source, {ErrorCode::Corrupted, "it sent another blob than it was asked"});
  if (!source->is_idle()) source->used = now();
  ask(source);
}

// Errors: what no honest source sends.
Status BlobSources::take(Source& source, const net::InFrame& frame) {
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) {
    WEFT_TRY(const proto::ChunkFrame chunk, proto::decode_chunk(frame.payload.span()));
    if (!source.transfers.is_getting(chunk.request))
      return fail(ErrorCode::InvalidArgument, "bytes that were not asked for");
    return source.transfers.on_chunk(chunk, frame.body_size);
  }
  if (frame.kind != static_cast<uint8_t>(proto::FrameKind::Message))
    return fail(ErrorCode::InvalidArgument, "a frame that is not for a blob");
  WEFT_TRY(proto::Message message, proto::decode(frame.payload.span()));
  auto* answer = std::get_if<proto::BlobAnswer>(&message);
  if (answer == nullptr)
    return fail(ErrorCode::InvalidArgument, std::string(proto::name_of(message)) + " is not for a blob");
  // What else it may say of itself is not what it would mean of this side.
  if (answer->code != ErrorCode::NotFound) answer->code = ErrorCode::Unavailable;
  WEFT_TRY_STATUS(source.transfers.on_message(message));
  return {};
}

// ---- time

void BlobSources::on_tick() {
  const Instant at = now();
  // Who slept has heard nothing, and cannot blame the others for it.
  if (at - ticked_ > kAsleep)
    for (const auto& [peer, source] : sources_) source->heard += at - ticked_;
  ticked_ = at;
  for (const auto& [peer, source] : std::map(sources_)) look_after(source, at);
}

void BlobSources::look_after(const SourcePtr& source, Instant at) {
  if (!source->connection) return;  // an attempt has its own deadline
  const uint64_t bytes = source->connection->stats().bytes_received;
  if (std::exchange(source->bytes_heard, bytes) != bytes) source->heard = at;
  if (source->is_idle()) {
    const Duration deadline = source->was_given ? options_.idle_deadline : options_.stranger_deadline;
    if (at - source->used >= deadline) end(source, {ErrorCode::Cancelled, "not used"});
    return;
  }
  source->used = at;
  if (at - source->heard < options_.silence_deadline) return;
  const auto silence = static_cast<int>(seconds(options_.silence_deadline));
  end(source, {ErrorCode::Timeout, "nothing came for " + std::to_string(silence) + " s"});
}

}  // namespace weft::peer
