#include "tests/attacks/submitter.h"

#include <chrono>
#include <thread>

#include "proto/codec/codec.h"
#include "storage/blob_store.h"

namespace weft::attacks {

namespace {
constexpr Duration kTurn = std::chrono::milliseconds(20);

net::OutFrame frame_of(proto::FrameKind kind, std::vector<std::byte> head, std::span<const std::byte> body) {
  head.insert(head.end(), body.begin(), body.end());
  return {.kind = static_cast<uint8_t>(kind), .head = std::move(head), .body = {}};
}
}  // namespace

Submitter::Submitter(const net::Endpoint& broker, const security::Token& token, std::function<bool()> is_over)
    : is_over_(std::move(is_over)), identity_(*security::Identity::generate()) {
  attempt_ = net::connect(loop_, broker,
                          {.identity = identity_.get(),
                           .expected = token.broker,
                           .deadline = std::chrono::seconds(30),
                           .shape = {}},
                          [this, token](Result<net::ConnectionPtr> connected) {
                            if (!connected) {
                              is_closed_ = true;
                              return;
                            }
                            connection_ = std::move(*connected);
                            connection_->set_limits({.frame_size_max = proto::kMessageSizeMax});
                            connection_->start({.on_frame =
                                                    [this](const net::InFrame& frame) {
                                                      auto message = proto::decode(frame.payload.span());
                                                      if (message) heard_.push_back(std::move(*message));
                                                    },
                                                .on_closed = [this](const Error&) { is_closed_ = true; }});
                            proto::Hello hello{.software = "test", .role = proto::Role::Submitter};
                            hello.token = proto::TokenProof{token.id, token.secret.bytes};
                            say(hello);
                          });
  (void)hear();  // the HelloAck
}

Submitter::~Submitter() {
  if (connection_) connection_->close();
}

void Submitter::say(const proto::Message& message) {
  connection_->send(frame_of(proto::FrameKind::Message, proto::encode(message), {}));
}

Result<proto::Message> Submitter::hear() {
  while (heard_.empty()) {
    if (is_over_()) return fail(ErrorCode::Cancelled, "the attack is over");
    if (is_closed_) return fail(ErrorCode::Unavailable, "the broker closed the connection");
    loop_.run_until(kTurn, [this] { return is_closed_ || !heard_.empty(); });
  }
  proto::Message message = std::move(heard_.front());
  heard_.erase(heard_.begin());
  return message;
}

Result<proto::Message> Submitter::ask(const proto::Message& question) {
  if (!connection_ || is_closed_) return fail(ErrorCode::Unavailable, "there is no connection");
  say(question);
  return hear();
}

Result<Digest> Submitter::put(std::span<const std::byte> blob) {
  const Digest sha256 = storage::sha256(blob);
  WEFT_TRY(const auto had, ask(proto::HaveBlobs{.request = 1, .blobs = {sha256}, .durable = true}));
  const auto* missing = std::get_if<proto::MissingBlobs>(&had);
  if (missing == nullptr) return fail(ErrorCode::Internal, "another answer than was asked for");
  if (missing->blobs.empty()) return sha256;
  say(proto::PutBlob{.request = 2, .sha256 = sha256, .size = blob.size()});
  for (size_t at = 0; at < blob.size(); at += proto::kChunkSizeMax)
    connection_->send(frame_of(proto::FrameKind::Chunk, proto::encode_chunk_head(2),
                               blob.subspan(at, std::min(proto::kChunkSizeMax, blob.size() - at))));
  WEFT_TRY(const auto put, hear());
  const auto* answer = std::get_if<proto::BlobAnswer>(&put);
  if (answer == nullptr || !answer->message.empty())
    return fail(ErrorCode::Internal, answer == nullptr ? "another answer" : answer->message);
  return sha256;
}

Result<proto::JobNumber> Submitter::submit(const proto::SubmitJob& submission) {
  WEFT_TRY(const auto answer, ask(submission));
  if (const auto* refusal = std::get_if<proto::Refusal>(&answer))
    return fail(refusal->code, refusal->message);
  if (const auto* accepted = std::get_if<proto::JobAccepted>(&answer)) return accepted->job;
  return fail(ErrorCode::Internal, "another answer than was asked for");
}

Result<proto::JobStatus> Submitter::wait_for_end(proto::JobNumber job) {
  for (;;) {
    WEFT_TRY(auto answer, ask(proto::GetJob{job}));
    if (auto* status = std::get_if<proto::JobStatus>(&answer);
        status != nullptr && status->state >= proto::JobState::Finished)
      return std::move(*status);
    loop_.run_until(kTurn, [this] { return is_closed_ || is_over_(); });
  }
}

proto::PackedFile file_of(std::string path, std::string bytes) {
  const uint64_t size = bytes.size();
  return {.path = std::move(path), .pieces = {{.bytes = std::move(bytes), .sha256 = {}, .size = size}}};
}

proto::PackedFile file_of(std::string path, const Digest& blob, uint64_t size) {
  return {.path = std::move(path), .pieces = {{.bytes = {}, .sha256 = blob, .size = size}}};
}

proto::SubmitJob submission_of(proto::PackedFile model, std::vector<proto::PackedFile> more) {
  proto::SubmitJob submission{.name = "attack.yaml",
                              .job =
                                  "model: model/m.onnx\n"
                                  "task: train\n"
                                  "inputs: {tokens: tokens}\n"
                                  "loss: {type: output, name: loss}\n"
                                  "data: {train: {type: text, path: data/train/t.txt, sequence_length: 4}}\n"
                                  "batch_size: 8\n"
                                  "microbatch_size: 4\n"
                                  "steps: 10\n"
                                  "optimizer: {type: sgd, learning_rate: 0.1}\n",
                              .files = std::move(more)};
  std::string text;
  for (int i = 0; i < 4096; ++i) text += static_cast<char>('a' + i % 26);
  submission.files.push_back(file_of("data/train/t.txt", std::move(text)));
  submission.files.push_back(std::move(model));
  return submission;
}

}  // namespace weft::attacks
