// The streams that callers have asked for, and what they asked under a key, that a restarted broker opens
// again, in an SQLite file of their own: they are written while the core's database is busy, and do not wait
// for it.
//
// Prompts are what people wrote. The file has mode 0600, and what is removed is written over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"
#include "proto/messages.h"

namespace weft::broker {

struct StoredRequest {
  std::string id;               // of its answer
  proto::ServeRequest request;  // `run` is the job; of a plan nothing is known
  int64_t created = 0;          // seconds since 1970
  bool is_chat = false, includes_usage = false;
  std::vector<std::string> stops;
  std::string once_name{}, once_asked{};  // digests (serve/service/once.h); empty: it has no key
  std::optional<int64_t> ended_unix_ms{};
};
struct RequestEnded {
  std::string id;
  int64_t unix_ms = 0;
};
struct RequestForgotten {
  std::string id;
};
using RequestChange = std::variant<StoredRequest, RequestEnded, RequestForgotten>;

struct RequestStoreOptions {
  int64_t pages_max = 131072;  // of the file: 512 MiB
};

class RequestStore {
 public:
  virtual ~RequestStore() = default;
  // All or nothing, and on the disk when it returns.
  virtual Status write(std::span<const RequestChange> changes) = 0;
  struct Loaded {
    std::vector<StoredRequest> requests;  // the oldest first
    size_t damaged = 0;                   // rows that mean nothing; they are removed
  };
  virtual Result<Loaded> load() = 0;
  // What was removed is gone from the log of writes, too.
  virtual Status fold() = 0;
};

// Makes the file where there is none. Errors as of open_sqlite_store().
Result<std::unique_ptr<RequestStore>> open_request_store(const std::filesystem::path& file,
                                                         const RequestStoreOptions& options = {});

}  // namespace weft::broker
