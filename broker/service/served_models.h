// The models of all jobs that serve, as one service behind the broker's door: each by its name, while there
// is somebody who computes it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "broker/service/kept_requests.h"
#include "broker/service/remote_source.h"
#include "broker/service/served.h"
#include "serve/service/text_service.h"
#include "web/service.h"

namespace weft::broker {

// A job that serves, as far as it can be asked.
struct AnsweringJob {
  std::shared_ptr<const ServedJob> job;      // without its tokenizer
  std::shared_ptr<RemoteWork> work;          // nothing: it is not ready
  std::shared_ptr<serve::TextService> text;  // likewise
  std::string fault{};                       // why it never will be; empty: it will
};

class ServedModels final : public web::Service {
 public:
  // Until a model that is not placed is asked for again.
  static constexpr uint32_t kRetryAfter = 5;  // seconds

  // `kept` outlives it.
  ServedModels(std::function<Instant()> now, KeptRequests& kept) : now_(std::move(now)), kept_(kept) {}

  void put(const AnsweringJob& job);  // new, or instead of what there was
  void remove(proto::JobNumber job);
  std::vector<AnsweringJob> all() const;
  // Lets go of those that went so long ago that nobody may read their answers any more.
  void forget();

  std::vector<web::ModelInfo> models() const override;
  std::optional<web::ApiError> why_absent(const std::string& model) const override;
  std::shared_ptr<web::OpenRequest> start(web::GenerateRequest request,
                                          std::shared_ptr<web::Sink> sink) override;
  std::shared_ptr<web::OpenRequest> resume(const std::string& id, std::shared_ptr<web::Sink> sink) override;
  web::Health health() const override;
  Metrics metrics() const override;

 private:
  struct Gone {
    Instant since{};
    std::shared_ptr<serve::TextService> text;
  };
  bool answers(const AnsweringJob& job) const;
  // Of those that have the name the one that can answer.
  std::optional<AnsweringJob> find(const std::string& name) const;
  std::shared_ptr<web::OpenRequest> find_kept(const std::string& id,
                                              const std::shared_ptr<web::Sink>& sink) const;
  void retire(AnsweringJob job) WEFT_REQUIRES(mutex_);

  const std::function<Instant()> now_;
  KeptRequests& kept_;
  mutable Mutex mutex_;
  std::map<proto::JobNumber, AnsweringJob> jobs_ WEFT_GUARDED_BY(mutex_);
  std::vector<Gone> gone_ WEFT_GUARDED_BY(mutex_);
};

}  // namespace weft::broker
