// The part of PeerService that moves blobs and microbatches of data over its second connection to the broker.
#include <algorithm>

#include "base/check.h"
#include "peer/backend/host/host_memory.h"
#include "peer/service/peer_stage.h"

namespace weft::peer {

namespace {
constexpr uint64_t kTensorBytesMax = uint64_t{64} << 30;
}  // namespace

BulkTransfers& PeerService::transfers() {
  if (transfers_) return *transfers_;
  transfers_ = std::make_shared<BulkTransfers>(
      [this](net::OutFrame frame) {
        if (bulk_ready_)
          bulk_->send(std::move(frame));
        else
          bulk_waiting_.push_back(std::move(frame));
      },
      &loop_);
  net::ConnectOptions options;
  options.identity = options_.identity;
  options.expected = options_.broker_key;
  if (options_.shape) options.shape = options_.shape("");
  const uint64_t number = ++bulk_number_;
  bulk_attempt_ =
      net::connect(loop_, options_.broker, options, [this, number](Result<net::ConnectionPtr> result) {
        if (number != bulk_number_) return;
        if (!result) return close_bulk(result.error());
        bulk_ = std::move(*result);
        net::ConnectionLimits limits;
        limits.frame_size_max = proto::kTensorSizeMax + proto::kTensorHeaderSizeMax;
        limits.send_queue_max = size_t{16} << 30;
        bulk_->set_limits(limits);
        bulk_->start({.on_frame = [this](net::InFrame frame) { on_bulk_frame(frame); },
                      .on_closed = [this](const Error& error) { close_bulk(error); },
                      .on_head = [this](uint8_t kind, size_t size,
                                        std::span<const std::byte> head) -> Result<net::Placement> {
                        return transfers_ ? transfers_->place(kind, size, head) : net::Placement{};
                      }});
        proto::Hello hello = options_.hello;
        hello.role = proto::Role::PeerBulk;
        hello.device.reset();
        hello.token.reset();
        bulk_->send(message_frame(hello));
      });
  return *transfers_;
}

// What was under way is told, and may want to begin anew: on a new connection.
void PeerService::close_bulk(const Error& error) {
  ++bulk_number_;
  bulk_ready_ = false;
  bulk_waiting_.clear();
  if (bulk_) bulk_->close();
  bulk_.reset();
  // This may be its callback.
  if (bulk_attempt_) loop_.post([attempt = std::shared_ptr<net::Attempt>(std::move(bulk_attempt_))] {});
  const std::shared_ptr<BulkTransfers> old = std::move(transfers_);
  const auto paced = std::exchange(paced_fetches_, {});
  fetch_timer_.reset();
  if (old) old->fail_all(error);
  for (const FetchBlob& fetch : paced)
    carry_out(peer_->on_blob(loop_.now(), fetch.sha256, weft::fail(error)));
}

void PeerService::on_bulk_frame(const net::InFrame& frame) {
  const std::shared_ptr<BulkTransfers> transfers = transfers_;  // what comes may end it
  Status status;
  if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Message)) {
    const auto message = proto::decode(frame.payload.span());
    if (!message) return close_bulk(message.error());
    if (std::holds_alternative<proto::HelloAck>(*message) && !bulk_ready_) {
      bulk_ready_ = true;
      for (net::OutFrame& waiting : std::exchange(bulk_waiting_, {})) bulk_->send(std::move(waiting));
    } else if (const auto* refusal = std::get_if<proto::Refusal>(&*message)) {
      close_bulk({refusal->code, refusal->message});
    } else {
      const auto taken = transfers->on_message(*message);
      if (!taken) status = fail(taken.error());
    }
  } else if (frame.kind == static_cast<uint8_t>(proto::FrameKind::Chunk)) {
    const auto chunk = proto::decode_chunk(frame.payload.span());
    status = chunk ? transfers->on_chunk(*chunk, frame.body_size) : fail(chunk.error());
  } else {
    auto tensor = tensor_of(frame);
    status = tensor ? transfers->on_tensor(std::move(*tensor)) : fail(tensor.error());
  }
  if (!status && transfers == transfers_) close_bulk(status.error());
}

// ---- blobs
// -----------------------------------------------------------------------------------------------------

void PeerService::fetch_blob(const FetchBlob& fetch) {
  if (fetch.rate == 0) {
    std::erase_if(paced_fetches_, [&](const FetchBlob& paced) { return paced.sha256 == fetch.sha256; });
    return get_blob(fetch);
  }
  paced_fetches_.push_back(fetch);
  fetch_paced();
}

void PeerService::forget_blobs(const ForgetBlobs& forget) {
  constexpr size_t kLarge = 16 << 20;
  size_t bytes = 0;
  for (const Digest& sha256 : forget.blobs)
    if (const auto at = blobs_.find(sha256); at != blobs_.end()) {
      bytes += at->second.bytes.size();
      blobs_.erase(at);
    }
  if (bytes >= kLarge) return_freed_memory();
}

// Each request waits until the rate has carried the one before.
void PeerService::fetch_paced() {
  const Instant now = loop_.now();
  while (!paced_fetches_.empty()) {
    if (const Duration wait = fetch_pacer_.wait(now); wait > Duration{}) {
      fetch_timer_ = loop_.after(wait, [this] { fetch_paced(); });
      return;
    }
    const FetchBlob fetch = paced_fetches_.front();
    paced_fetches_.pop_front();
    fetch_pacer_.take(now, fetch.size, fetch.rate);
    get_blob(fetch);
  }
}

void PeerService::get_blob(const FetchBlob& fetch) {
  const Digest sha256 = fetch.sha256;
  transfers().get(sha256, fetch.size != 0 ? fetch.size : kTensorBytesMax,
                  [this, sha256](Result<std::vector<std::byte>> bytes) {
                    Status fetched;
                    if (bytes) {
                      const auto kept = std::make_shared<const std::vector<std::byte>>(std::move(*bytes));
                      blobs_.try_emplace(sha256, net::SharedBytes{kept, *kept});
                    } else {
                      fetched = fail(bytes.error());
                    }
                    carry_out(peer_->on_blob(loop_.now(), sha256, fetched));
                  });
}

void PeerService::offer(const OfferBlobs& offer) {
  transfers().missing(offer.blobs, offer.durable,
                      [this, upload = offer.upload](Result<std::vector<Digest>> missing) {
                        carry_out(peer_->on_missing(loop_.now(), upload, missing));
                      });
}

void PeerService::put(const UploadBlob& upload) {
  const auto done = [this, number = upload.upload, sha256 = upload.sha256](Status stored) {
    carry_out(peer_->on_uploaded(loop_.now(), number, sha256, stored));
  };
  const auto blob = blobs_.find(upload.sha256);
  WEFT_CHECK_MSG(blob != blobs_.end(), "the machine names what it holds");
  transfers().put(upload.sha256, blob->second, {.durable = upload.durable, .rate = upload.rate}, done);
}

// ---- data
// ------------------------------------------------------------------------------------------------------

void PeerService::fetch_data(const FetchData& fetch) {
  proto::GetMicrobatch request{.run = stage_->assignment->run,
                               .data_key = stage_->assignment->data_key,
                               .program = fetch.key.program,
                               .step = fetch.key.step,
                               .microbatch = fetch.key.microbatch,
                               .inputs = program_of(*stage_->assignment, fetch.key.program).data_inputs};
  transfers().get_microbatch(std::move(request), [this, key = fetch.key, generation = fetch.generation](
                                                     Result<BulkTransfers::Microbatch> result) {
    if (!stage_ || stage_->generation != generation) return;
    if (!result) return carry_out(peer_->on_data(loop_.now(), generation, key, fail(result.error())));
    const uint64_t position = result->sample_position;
    stage_->inbox.keep(key, std::move(*result));
    carry_out(peer_->on_data(loop_.now(), generation, key, position));
  });
}

}  // namespace weft::peer
