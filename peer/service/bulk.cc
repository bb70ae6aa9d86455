#include "peer/service/bulk.h"

#include <algorithm>

#include "peer/service/encoding.h"

namespace weft::peer {

using proto::Message;

namespace {
constexpr size_t kUnansweredMax = 8 << 20;  // bytes of puts without an answer before another one begins
constexpr size_t kToldFrom = 256 << 10;     // bytes: of smaller ones nobody need know how far they are
}  // namespace

net::OutFrame message_frame(const Message& message) {
  return {
      .kind = static_cast<uint8_t>(proto::FrameKind::Message), .head = proto::encode(message), .body = {}};
}

net::OutFrame tensor_frame(const proto::TensorHeader& header, const dag::Tensor& payload) {
  const auto kept = std::make_shared<const dag::Tensor>(payload);  // shares the bytes
  return {.kind = static_cast<uint8_t>(proto::FrameKind::Tensor),
          .head = proto::encode_header(header),
          .body = {kept, kept->bytes()}};
}

Result<ReceivedTensor> tensor_of(const net::InFrame& frame) {
  const auto spec_of = [](const proto::TensorHeader& header, size_t size) {
    return header.codec.kind == compress::Kind::Dense ? header.spec : payload_spec(size);
  };
  if (frame.body) {
    WEFT_TRY(proto::TensorHead head, proto::decode_tensor_head(frame.payload.span(), frame.size()));
    dag::Tensor payload(spec_of(head.header, frame.size() - head.size), frame.body);
    return ReceivedTensor{std::move(head.header), std::move(payload)};
  }
  WEFT_TRY(proto::TensorFrame tensor, proto::decode_tensor(frame.payload.span()));
  dag::Tensor payload(spec_of(tensor.header, tensor.bytes.size()), tensor.bytes);
  return ReceivedTensor{std::move(tensor.header), std::move(payload)};
}

BulkTransfers::~BulkTransfers() { fail_all({ErrorCode::Cancelled, "the transfer was given up"}); }

void BulkTransfers::get(const Digest& sha256, uint64_t size_max, const GetOptions& options,
                        std::function<void(Result<std::vector<std::byte>>)> done) {
  proto::GetBlob message{.request = next_request_++, .sha256 = sha256, .rate = options.rate};
  net::SharedBytes base;
  if (const auto& named = options.base; named && named->bytes.size() == size_max)
    base = {named->owner.lock(), named->bytes};
  if (base.owner) message.base = options.base->sha256;
  Get get{.sha256 = sha256,
          .size_max = size_max,
          .done = std::move(done),
          .is_from_peer = options.is_from_peer,
          .body = GetBody(options.sink, std::move(base))};
  gets_[message.request] = std::move(get);
  send_(message_frame(message));
}

void BulkTransfers::put(const Digest& sha256, net::SharedBytes bytes, PutOptions options,
                        std::function<void(Status)> done) {
  Put put;
  put.request = next_request_++;
  put.sha256 = sha256;
  put.body.bytes = std::move(bytes);
  put.options = std::move(options);
  put.options.packs &= put.body.bytes.bytes.size() >= storage::kWorthPacking;
  if (put.options.may_lapse) put.owner = std::exchange(put.body.bytes.owner, nullptr);
  put.done = std::move(done);
  puts_.push_back(std::move(put));
  send_puts();
}

void BulkTransfers::send_puts() {
  if (chunk_timer_) return;
  size_t unanswered = 0;
  std::vector<std::function<void(Status)>> lapsed;
  for (auto at = puts_.begin(); at != puts_.end();) {
    const size_t size = at->body.bytes.bytes.size();
    if (!at->begun) {
      if (unanswered != 0 && unanswered + size > kUnansweredMax) break;
      if (!begin_put(*at)) {
        lapsed.push_back(std::move(at->done));
        at = puts_.erase(at);
        continue;
      }
    }
    while (!at->is_sent() && send_chunk(*at)) continue;
    if (!at->is_sent()) break;
    unanswered += size + kUnansweredMax / 64;
    ++at;
  }
  for (const auto& done : lapsed) done(fail(ErrorCode::Cancelled, "the upload was given up"));
}

bool BulkTransfers::begin_put(Put& put) {
  if (!put.body.bytes.owner) put.body.bytes.owner = put.owner.lock();
  if (put.options.may_lapse && !put.body.bytes.owner) return false;
  put.begun = true;
  proto::PutBlob message{.request = put.request,
                         .sha256 = put.sha256,
                         .size = put.body.bytes.bytes.size(),
                         .durable = put.options.durable,
                         .packed = put.options.packs};
  if (const auto& base = put.options.base; base && put.options.packs && base->bytes.size() == message.size)
    put.body.base = {base->owner.lock(), base->bytes};
  put.has_base = put.body.base.owner != nullptr;
  if (put.has_base) message.base = put.options.base->sha256;
  send_(message_frame(message));
  return true;
}

bool BulkTransfers::send_chunk(Put& put) {
  if (put.options.packs) put.body.pack_next(packer_);
  size_t size = std::min(proto::kChunkSizeMax, put.body.next_size());
  if (pacing_.loop != nullptr && put.options.rate != 0) {
    const Instant now = pacing_.loop->now();
    const CopyPacer::Line line{.unsent = pacing_.unsent ? pacing_.unsent() : 0,
                               .urgent = pacing_.yields && pacing_.yields()};
    if (const Duration wait = pacer_.wait(now, put.options.rate, line); wait > Duration{}) {
      chunk_timer_ = pacing_.loop->after(wait, [this] {
        chunk_timer_.reset();
        send_puts();
      });
      return false;
    }
    size = pacer_.take(now, size, put.options.rate, line);
  }
  send_({.kind = static_cast<uint8_t>(proto::FrameKind::Chunk),
         .head = proto::encode_chunk_head(put.request),
         .body = put.body.next(size)});
  put.given += size;
  return true;
}

// Its base is not there any more, or not what it should be. It goes last: another may be on its way.
void BulkTransfers::put_again(uint64_t request) {
  const auto at =
      std::find_if(puts_.begin(), puts_.end(), [&](const Put& p) { return p.request == request; });
  Put put = std::move(*at);
  puts_.erase(at);
  put.request = next_request_++;
  put.options.base.reset();
  put.begun = put.has_base = false;
  put.given = 0;
  put.body.begin_again();
  puts_.push_back(std::move(put));
  send_puts();
}

void BulkTransfers::cancel_puts(uint64_t owner) {
  std::vector<std::function<void(Status)>> cancelled;
  std::erase_if(puts_, [&](Put& put) {
    if (put.begun || put.options.owner != owner) return false;
    cancelled.push_back(std::move(put.done));
    return true;
  });
  for (const auto& done : cancelled) done(fail(ErrorCode::Cancelled, "the upload was given up"));
}

// What waits in the connection is of the last ones that were given to it.
bool BulkTransfers::tell_sent() {
  uint64_t waiting = pacing_.unsent ? pacing_.unsent() : 0;
  for (auto put = puts_.rbegin(); put != puts_.rend(); ++put) {
    const uint64_t waits = std::min(waiting, put->given);
    waiting -= waits;
    if (put->given == 0 || !put->options.on_sent || put->body.bytes.bytes.size() < kToldFrom) continue;
    const double share = static_cast<double>(put->given - waits) / static_cast<double>(put->given);
    put->options.on_sent(static_cast<uint64_t>(share * static_cast<double>(put->body.taken())));
  }
  return !puts_.empty();
}

void BulkTransfers::missing(proto::HaveBlobs question,
                            std::function<void(Result<std::vector<Digest>>)> done) {
  question.request = next_request_++;
  missing_[question.request] = std::move(done);
  send_(message_frame(question));
}

void BulkTransfers::get_microbatch(proto::GetMicrobatch request, std::vector<dag::TensorSpec> specs,
                                   std::function<void(Result<MicrobatchData>)> done) {
  request.request = next_request_++;
  send_(message_frame(request));
  microbatches_.ask(std::move(request), std::move(specs), std::move(done));
}

// To a get.
Status BulkTransfers::on_answer(const proto::BlobAnswer& answer) {
  Get& get = gets_.at(answer.request);
  const bool is_larger = answer.size > get.size_max;
  if (answer.message.empty() && !is_larger) return begin_get(answer);
  if (answer.message.empty() && get.is_from_peer)
    return refuse_get(answer.request, {ErrorCode::Corrupted, "a blob is said to be larger than it is"});
  end_get(answer.request, answer.message.empty()
                              ? Error{ErrorCode::ResourceExhausted, "a blob is larger than expected"}
                              : Error{answer.code, answer.message});
  return {};
}

Status BulkTransfers::begin_get(const proto::BlobAnswer& answer) {
  Get& get = gets_.at(answer.request);
  const bool has_such_base = answer.packed && get.body.has_base_of(answer.size);
  if ((answer.packed && !get.is_from_peer) || (answer.has_base && !has_such_base))
    return refuse_get(answer.request, {ErrorCode::Corrupted, "a blob is packed in a way that was not asked"});
  if (const Status begun = get.body.begin({answer.size, answer.packed, answer.has_base}); !begun)
    end_get(answer.request, begun.error());
  else if (answer.size == 0)
    finish_get(answer.request);
  return {};
}

void BulkTransfers::end_get(uint64_t request, const Error& error) {
  const auto done = std::move(gets_.at(request).done);
  gets_.erase(request);
  done(fail(error));
}

// The request is told, the connection ends.
Status BulkTransfers::refuse_get(uint64_t request, const Error& error) {
  end_get(request, error);
  return fail(error);
}

void BulkTransfers::finish_get(uint64_t request) {
  const auto at = gets_.find(request);
  Get get = std::move(at->second);
  gets_.erase(at);
  if (get.body.hash() != to_hex(get.sha256))
    return get.done(fail(ErrorCode::Corrupted, "blob " + to_hex(get.sha256) + " came with other bytes"));
  get.done(get.body.take_bytes());
}

Result<bool> BulkTransfers::on_message(const Message& message) {
  if (const auto* answer = std::get_if<proto::BlobAnswer>(&message)) {
    if (const auto get = gets_.find(answer->request); get != gets_.end() && !get->second.body.has_begun()) {
      WEFT_TRY_STATUS(on_answer(*answer));
      return true;
    }
    const auto put =
        std::find_if(puts_.begin(), puts_.end(), [&](const Put& p) { return p.request == answer->request; });
    const bool is_of_base = answer->code == ErrorCode::NotFound || answer->code == ErrorCode::Corrupted;
    if (put != puts_.end() && put->is_sent() && put->has_base && !answer->message.empty() && is_of_base) {
      put_again(answer->request);
      return true;
    }
    if (put != puts_.end() && put->is_sent()) {
      const auto done = std::move(put->done);
      puts_.erase(put);
      send_puts();
      done(answer->message.empty() ? Status{} : fail(answer->code, answer->message));
      return true;
    }
    return fail(ErrorCode::InvalidArgument, "an answer to nothing that was asked");
  }
  if (const auto* answer = std::get_if<proto::MissingBlobs>(&message)) {
    const auto at = missing_.find(answer->request);
    if (at == missing_.end()) return fail(ErrorCode::InvalidArgument, "an answer to nothing that was asked");
    const auto done = std::move(at->second);
    missing_.erase(at);
    done(answer->blobs);
    return true;
  }
  if (const auto* answer = std::get_if<proto::MicrobatchAnswer>(&message)) {
    WEFT_TRY_STATUS(microbatches_.on_answer(*answer));
    return true;
  }
  return false;
}

Status BulkTransfers::on_chunk(const proto::ChunkFrame& chunk, size_t placed) {
  const auto at = gets_.find(chunk.request);
  if (at == gets_.end()) return {};  // given up meanwhile
  GetBody& body = at->second.body;
  if (!body.expects(chunk.bytes.size()))
    return fail(ErrorCode::InvalidArgument, "more of a blob than was promised");
  const Status taken = body.take(chunk.bytes, placed);
  if (!taken && !body.is_handed_on()) return refuse_get(chunk.request, taken.error());
  if (!taken)  // what still comes of it belongs to nobody
    end_get(chunk.request, taken.error());
  else if (body.is_whole())
    finish_get(chunk.request);
  return {};
}

// What is not as it should be is collected, for the functions above to say so, if it is not too large for
// that.
Result<net::PayloadPlace> BulkTransfers::place(uint8_t kind, size_t payload_size,
                                               std::span<const std::byte> head) {
  constexpr size_t kHeadMax = 64;  // of a chunk, about
  if (kind == static_cast<uint8_t>(proto::FrameKind::Tensor)) return microbatches_.place(payload_size, head);
  const bool is_chunk = kind == static_cast<uint8_t>(proto::FrameKind::Chunk);
  if (payload_size > (is_chunk ? proto::kChunkSizeMax + kHeadMax : proto::kMessageSizeMax))
    return fail(ErrorCode::InvalidArgument, "a frame of " + std::to_string(payload_size) + " bytes");
  return is_chunk ? place_chunk(payload_size, head) : net::PayloadPlace{};
}

Result<net::PayloadPlace> BulkTransfers::place_chunk(size_t payload_size, std::span<const std::byte> head) {
  const auto chunk = proto::decode_chunk(head);
  if (!chunk) return net::PayloadPlace{};
  const auto at = gets_.find(chunk->request);
  if (at == gets_.end()) return net::PayloadPlace{};
  const size_t head_size = head.size() - chunk->bytes.size();
  return at->second.body.place(head_size, payload_size - head_size);
}

void BulkTransfers::fail_all(const Error& error) {
  chunk_timer_.reset();
  for (auto& [request, get] : std::exchange(gets_, {})) get.done(fail(error));
  for (auto& put : std::exchange(puts_, {})) put.done(fail(error));
  for (auto& [request, done] : std::exchange(missing_, {})) done(fail(error));
  microbatches_.fail_all(error);
}

}  // namespace weft::peer
