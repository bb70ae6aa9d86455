#include "peer/service/blob_fetcher.h"

#include "base/printable.h"

namespace weft::peer {

void BlobFetcher::take(const Digest& sha256, Result<net::SharedBytes> bytes) {
  const Status fetched = bytes ? Status{} : fail(bytes.error());
  if (bytes) blobs_.keep(sha256, std::move(*bytes));
  outside_.on_blob(sha256, fetched);
}

void BlobFetcher::fetch(const FetchBlob& fetch, BulkService& bulk) {
  if (auto made = made_.make(fetch.sha256)) return take(fetch.sha256, *std::move(made));
  if (!kept_.has(fetch.sha256, fetch.size)) return fetch_from_elsewhere(fetch, bulk);
  kept_.read(fetch.sha256, [this, fetch, &bulk](Result<net::SharedBytes> bytes) {
    if (bytes) return take(fetch.sha256, std::move(bytes));
    // Of a file that has changed nothing is known any more: once is enough.
    if (bytes.error().code != ErrorCode::NotFound)
      outside_.log("warning weights_not_read reason=\"" + printable(bytes.error().message) + "\"");
    fetch_from_elsewhere(fetch, bulk);
  });
}

void BlobFetcher::fetch_from_elsewhere(const FetchBlob& fetch, BulkService& bulk) {
  BulkService::Wanted wanted{.sha256 = fetch.sha256,
                             .size = fetch.size,
                             .rate = fetch.rate,
                             .source = fetch.source,
                             .base = blobs_.base(fetch.base)};
  bulk.get(std::move(wanted),
           [this, sha256 = fetch.sha256](Result<net::SharedBytes> bytes) { take(sha256, std::move(bytes)); });
}

}  // namespace weft::peer
