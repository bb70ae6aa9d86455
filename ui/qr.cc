#include "ui/qr.h"

#include <qrencode.h>

#include <memory>

namespace weft::ui {

namespace {

constexpr int kMargin = 4;  // as the standard wants it

struct Free {
  void operator()(QRcode* code) const { QRcode_free(code); }
};

bool is_dark(const QRcode& code, int row, int column) {
  const bool is_inside = row >= 0 && row < code.width && column >= 0 && column < code.width;
  return is_inside && (code.data[row * code.width + column] & 1) != 0;
}

}  // namespace

Result<std::string> qr_code(const std::string& text) {
  const std::unique_ptr<QRcode, Free> code(
      QRcode_encodeString8bit(text.c_str(), /*version=*/0, QR_ECLEVEL_M));
  if (!code) return fail(ErrorCode::ResourceExhausted, "the address is too long for a QR code");
  // Each character is two modules above each other, black on white by the terminal's own codes.
  std::string out;
  for (int row = -kMargin; row < code->width + kMargin; row += 2) {
    out += "\x1b[30;107m";
    for (int column = -kMargin; column < code->width + kMargin; ++column) {
      const bool upper = is_dark(*code, row, column), lower = is_dark(*code, row + 1, column);
      out += upper && lower ? "\u2588" : upper ? "\u2580" : lower ? "\u2584" : " ";
    }
    out += "\x1b[0m\n";
  }
  return out;
}

}  // namespace weft::ui
