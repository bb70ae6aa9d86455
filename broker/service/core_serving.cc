// What the core says of jobs that serve: to the gates whose tokens they pass on, and to whoever answers
// requests what is served, and where.
#include <algorithm>

#include "broker/service/core.h"

namespace weft::broker {

namespace {

constexpr uint64_t kTokenizerMax = uint64_t{64} << 20;

Result<std::string> read_piece(const proto::FilePiece& piece, const storage::BlobStore& blobs, uint64_t max) {
  if (!piece.sha256) return piece.bytes;
  WEFT_TRY(const auto bytes, blobs.read(*piece.sha256, max));
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

// Errors: NotFound, the submission has no such file; ResourceExhausted, it is too large; what the disk says.
Result<std::string> read_submitted(const proto::SubmitJob& submission, const std::string& path,
                                   const storage::BlobStore& blobs) {
  const auto file = std::find_if(submission.files.begin(), submission.files.end(),
                                 [&](const proto::PackedFile& one) { return one.path == path; });
  if (file == submission.files.end()) return fail(ErrorCode::NotFound, "the job has no file '" + path + "'");
  std::string text;
  for (const proto::FilePiece& piece : file->pieces) {
    if (piece.size > kTokenizerMax - std::min<uint64_t>(kTokenizerMax, text.size()))
      return fail(ErrorCode::ResourceExhausted, "'" + path + "' is larger than 64 MiB");
    WEFT_TRY(const std::string bytes, read_piece(piece, blobs, kTokenizerMax));
    text += bytes;
  }
  return text;
}

ServedJob served_job(proto::JobNumber number, const ServedState& state, const storage::BlobStore& blobs) {
  ServedJob job{
      .job = number, .model = state.model, .created = state.created, .unavailable = state.unavailable};
  if (state.entry) job.place = ServedPlace{number, state.plan_version, *state.entry};
  if (state.model.tokenizer.empty()) return job;
  auto tokenizer = read_submitted(*state.submission, state.model.tokenizer, blobs);
  if (tokenizer) {
    job.tokenizer_json = std::move(*tokenizer);
  } else {
    job.place.reset();
    job.unavailable = "its tokenizer cannot be read: " + tokenizer.error().message;
  }
  return job;
}

}  // namespace

// The tokenizer is read on a thread of its own, each time: that is seldom, and it may be gone.
void Core::publish_served(PublishServed& served) {
  ServedEntry entry{.job = served.job};
  if (served.state) entry = {served.job, served.state->plan_version, served.state->entry};
  gates_.set_entry(entry);
  if (options_.served == nullptr) return;
  served_thread_->post([this, served = std::move(served)] {
    if (served.state)
      options_.served->on_served(served_job(served.job, *served.state, blobs_));
    else
      options_.served->on_withdrawn(served.job);
  });
}

}  // namespace weft::broker
