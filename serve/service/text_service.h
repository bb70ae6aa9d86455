// The service behind the door (web/service.h): text in, text out, by one model.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/mutex.h"
#include "net/worker.h"
#include "serve/service/answer.h"
#include "serve/service/request_keeper.h"
#include "serve/service/token_source.h"
#include "text/chat.h"
#include "text/tokenizer.h"
#include "web/service.h"

namespace weft::serve {

struct TextModel {
  std::string name;
  std::string fingerprint;  // of what decides bits: weights, numerics, codec
  int64_t created = 0;      // seconds since 1970
  text::Tokenizer tokenizer = text::Tokenizer::bytes();
  std::optional<text::ChatTemplate> chat_template{};  // nothing: it does not chat
};

web::ApiError no_such_stream(const std::string& id);

class TextService final : public web::Service, public std::enable_shared_from_this<TextService> {
 public:
  // An answer can be read again for so long after its end; one that may be, and that nobody reads, goes on
  // for as long.
  static constexpr Duration kKept = std::chrono::seconds(60);
  // Of answers that have ended; beyond it the oldest go early. What was refused is not kept.
  static constexpr size_t kKeptMax = 4096;
  // Of prompts that wait to become tokens. Beyond it a request is refused, as while too many wait.
  static constexpr size_t kPreparedBytesMax = size_t{64} << 20;

  // Streams, and what is asked under a key, are kept by the keeper, where there is one: nobody hears of what
  // is not, unless it cannot be.
  TextService(TextModel model, std::unique_ptr<TokenSource> source,
              std::shared_ptr<RequestKeeper> keeper = nullptr);
  ~TextService() override;
  // From here on it is another one: who computes has changed. Answers under way say so at their end. Any
  // thread.
  void set_fingerprint(std::string fingerprint);

  std::vector<web::ModelInfo> models() const override;
  std::shared_ptr<web::OpenRequest> start(web::GenerateRequest request,
                                          std::shared_ptr<web::Sink> sink) override;
  std::shared_ptr<web::OpenRequest> resume(const std::string& id, std::shared_ptr<web::Sink> sink) override;
  // The same, but whom nothing is kept for hears nothing: nullptr.
  std::shared_ptr<web::OpenRequest> resume_kept(const std::string& id,
                                                const std::shared_ptr<web::Sink>& sink);
  // A stream that was kept, by its name again, for whoever asks the source in its name. Errors: of its stops.
  struct Reopened {
    Listener listener;
    TokenSource::Begun begun;
  };
  Result<Reopened> reopen(const KeptRequest& kept);
  // Well while passes are made within 10 s. Where nothing is asked for, being asked for it makes a token, at
  // most once in 10 s.
  web::Health health() const override;
  Metrics metrics() const override { return source_->metrics(); }

 private:
  class Fingerprint;
  class Generating;
  class Kept;
  struct Prompt {
    std::vector<int64_t> tokens;
    std::vector<int64_t> ends;
    std::vector<std::string> stops;
  };

  Result<Prompt> prompt_of(const web::GenerateRequest& request) const;
  void begin(const web::GenerateRequest& request, size_t bytes,
             const std::shared_ptr<Generating>& generating);
  web::Generation generation_of(web::ApiKind kind, std::string id, int64_t created,
                                bool includes_usage) const;
  std::unique_ptr<KeptRequest> record_of(const Generating& generating, std::vector<std::string> stops,
                                         const Request& request) const;
  static Reopened told_to(const std::shared_ptr<Generating>& generating);
  static std::string fresh_id();
  bool may_prepare(size_t bytes);
  void prepared(size_t bytes);
  void probe() const;

  const TextModel model_;
  mutable Mutex mutex_;
  size_t preparing_bytes_ WEFT_GUARDED_BY(mutex_) = 0;
  mutable std::optional<Instant> probed_ WEFT_GUARDED_BY(mutex_);
  const std::shared_ptr<Fingerprint> fingerprint_;
  const std::shared_ptr<Kept> kept_;
  const std::shared_ptr<RequestKeeper> keeper_;  // nothing: none
  const std::shared_ptr<TokenSource> source_;    // shared for the moment of a call that comes late
  net::Worker tokenizing_;                       // last: what it does uses the rest
};

}  // namespace weft::serve
