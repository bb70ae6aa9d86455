// A user who submits whatever its script says, and hears what becomes of it.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "net/connection.h"
#include "net/loop.h"
#include "proto/messages.h"
#include "security/token.h"

namespace weft::attacks {

// One thread. Every wait ends when it is over: Cancelled.
class Submitter {
 public:
  Submitter(const net::Endpoint& broker, const security::Token& token, std::function<bool()> is_over);
  ~Submitter();
  Submitter(const Submitter&) = delete;
  Submitter& operator=(const Submitter&) = delete;

  // Uploads it, unless the broker has it.
  Result<Digest> put(std::span<const std::byte> blob);
  // The job's number, or why it was refused.
  Result<proto::JobNumber> submit(const proto::SubmitJob& submission);
  // Once it has ended.
  Result<proto::JobStatus> wait_for_end(proto::JobNumber job);

 private:
  void say(const proto::Message& message);
  Result<proto::Message> hear();
  Result<proto::Message> ask(const proto::Message& question);

  const std::function<bool()> is_over_;
  net::Loop loop_;
  std::unique_ptr<security::Identity> identity_;
  std::unique_ptr<net::Attempt> attempt_;
  net::ConnectionPtr connection_;
  std::vector<proto::Message> heard_;
  bool is_closed_ = false;
};

// A submission of one model over a few bytes of text; `more` stands beside the model, which may be in a blob.
proto::SubmitJob submission_of(proto::PackedFile model, std::vector<proto::PackedFile> more = {});
proto::PackedFile file_of(std::string path, std::string bytes);
proto::PackedFile file_of(std::string path, const Digest& blob, uint64_t size);
inline constexpr const char* kModelPath = "model/m.onnx";

}  // namespace weft::attacks
