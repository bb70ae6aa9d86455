// Requests and answers of the bulk connection.
#include "proto/codec/wire.h"

namespace weft::proto {

void put(const GetBlob& from, wire::GetBlob& to) {
  to.set_request(from.request);
  to.set_sha256(put_bytes(from.sha256));
  to.set_rate(from.rate);
  if (from.base) to.set_base(put_bytes(*from.base));
}
Status get(const wire::GetBlob& from, GetBlob& to) {
  Reader read("GetBlob");
  to.request = from.request();
  read.digest(from.sha256(), to.sha256, "sha256");
  to.rate = from.rate();
  if (!from.base().empty()) read.digest(from.base(), to.base.emplace(), "base");
  return read.status();
}

void put(const PutBlob& from, wire::PutBlob& to) {
  to.set_request(from.request);
  to.set_sha256(put_bytes(from.sha256));
  to.set_size(from.size);
  to.set_transient(!from.durable);
  to.set_packed(from.packed);
  if (from.base) to.set_base(put_bytes(*from.base));
}
Status get(const wire::PutBlob& from, PutBlob& to) {
  Reader read("PutBlob");
  to.request = from.request();
  read.digest(from.sha256(), to.sha256, "sha256");
  read.size(from.size(), to.size, "size");
  to.durable = !from.transient();
  to.packed = from.packed();
  if (!from.base().empty()) read.digest(from.base(), to.base.emplace(), "base");
  return read.status();
}

void put(const BlobAnswer& from, wire::BlobAnswer& to) {
  to.set_request(from.request);
  to.set_code(put_enum<wire::ErrorCode>(from.code));
  to.set_message(put_text(from.message));
  to.set_size(from.size);
  to.set_packed(from.packed);
  to.set_has_base(from.has_base);
}
Status get(const wire::BlobAnswer& from, BlobAnswer& to) {
  Reader read("BlobAnswer");
  to.request = from.request();
  read.error_code(from.code(), to.code, "code");
  read.message(from.message(), to.message, "message");
  read.size(from.size(), to.size, "size");
  to.packed = from.packed();
  to.has_base = from.has_base();
  read.require(to.packed || !to.has_base, "has_base", "of a blob that is not packed");
  return read.status();
}

namespace {
template <typename From, typename To>
void put_blobs(const From& from, To& to) {
  to.set_request(from.request);
  for (const Digest& blob : from.blobs) to.add_blobs(put_bytes(blob));
}
}  // namespace

void put(const HaveBlobs& from, wire::HaveBlobs& to) {
  put_blobs(from, to);
  to.set_transient(!from.durable);
  if (!from.recipes.empty()) put_recipes(from.recipes, *to.mutable_recipes());
}
Status get(const wire::HaveBlobs& from, HaveBlobs& to) {
  Reader read("HaveBlobs");
  to.request = from.request();
  read.digests(from.blobs(), to.blobs, kListMax, "blobs");
  to.durable = !from.transient();
  get_recipes(from.recipes(), to.recipes, read);
  return read.status();
}

void put(const MissingBlobs& from, wire::MissingBlobs& to) { put_blobs(from, to); }
Status get(const wire::MissingBlobs& from, MissingBlobs& to) {
  Reader read("MissingBlobs");
  to.request = from.request();
  read.digests(from.blobs(), to.blobs, kListMax, "blobs");
  return read.status();
}

void put(const GetMicrobatch& from, wire::GetMicrobatch& to) {
  to.set_request(from.request);
  to.set_run(from.run);
  to.set_data_key(put_bytes(from.data_key));
  to.set_program(put_enum<wire::ProgramKind>(from.program));
  to.set_step(from.step);
  to.set_microbatch(from.microbatch);
  put_plain(from.inputs, *to.mutable_inputs());
  to.set_narrows(from.narrows);
}
Status get(const wire::GetMicrobatch& from, GetMicrobatch& to) {
  Reader read("GetMicrobatch");
  to.request = from.request();
  to.run = from.run();
  read.secret(from.data_key(), to.data_key, "data_key");
  read.enumerator(from.program(), to.program, ProgramKind::Predict, "program");
  to.step = from.step();
  to.microbatch = from.microbatch();
  read.texts(from.inputs(), to.inputs, kShortListMax, kSymbolMax, "inputs");
  to.narrows = from.narrows();
  return read.status();
}

void put(const MicrobatchAnswer& from, wire::MicrobatchAnswer& to) {
  to.set_request(from.request);
  to.set_code(put_enum<wire::ErrorCode>(from.code));
  to.set_message(put_text(from.message));
  to.set_sample_position(from.sample_position);
  to.set_valid_count(from.valid_count);
}
Status get(const wire::MicrobatchAnswer& from, MicrobatchAnswer& to) {
  Reader read("MicrobatchAnswer");
  to.request = from.request();
  read.error_code(from.code(), to.code, "code");
  read.message(from.message(), to.message, "message");
  to.sample_position = from.sample_position();
  to.valid_count = from.valid_count();
  return read.status();
}

}  // namespace weft::proto
