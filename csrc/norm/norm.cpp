// RMS norm, alone and after a residual addition, and layer norm. Float inside, rounded once.
//
// Sources: Zhang and Sennrich 2019, arXiv:1910.07467; Ba et al. 2016, arXiv:1607.06450.

#include <nanobind/nanobind.h>


#include "common/parallel.h"
#include "common/rows.h"
#include "record/record.h"

namespace nb = nanobind;

namespace hotshoe {
namespace {

constexpr int64_t kMinElementsPerThread = 8192;  // below, waking a thread costs more

struct NormArgs {
  void *out, *residual;
  const void *x, *weight;
  int64_t rows, size, out_stride, x_stride, residual_stride;
  float eps, weight_offset, residual_scale;
};

template <class T>
void norm_row(T* out, const T* x, const NormArgs& args) {
  const T* weight = static_cast<const T*>(args.weight);
  const Vec scale = vset(inverse_rms(x, args.size, args.eps)), shift = vset(args.weight_offset);
  for_vectors(args.size, [&](int64_t i, auto lanes) {
    store(out + i, load(x + i, lanes) * scale * (load(weight + i, lanes) + shift), lanes);
  });
}

// residual = residual + scale * x, rounded: later layers and the norm see the same value.
template <class T>
void add_row(T* residual, const T* x, const NormArgs& args) {
  const Vec scale = vset(args.residual_scale);
  for_vectors(args.size, [&](int64_t i, auto lanes) {
    store(residual + i, vfma(load(x + i, lanes), scale, load(residual + i, lanes)), lanes);
  });
}

void rms_norm(const NormArgs& args, int dtype) {
  visit_float(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(
        args.rows,
        [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            T* out = static_cast<T*>(args.out) + row * args.out_stride;
            const T* x = static_cast<const T*>(args.x) + row * args.x_stride;
            if (args.residual) {
              T* residual = static_cast<T*>(args.residual) + row * args.residual_stride;
              add_row(residual, x, args);
              x = residual;
            }
            norm_row(out, x, args);
          }
        },
        rows_holding(kMinElementsPerThread, args.size));
  });
}

// The mean is taken off before anything is squared: what lies far from zero loses no digits.
template <class T>
void layer_norm_row(T* out, const T* x, const T* weight, const T* bias, int64_t size, float eps) {
  Vec sum = vzero(), squares = vzero();
  for_vectors(size, [&](int64_t i, auto lanes) { sum += load(x + i, lanes); });
  const Vec mean = vset(vsum(sum) / float(size));
  float last = 0.0f;  // of elements that fill no vector
  int64_t i = 0;
  for (; i + VL <= size; i += VL) {
    const Vec v = vload(x + i) - mean;
    squares = vfma(v, v, squares);
  }
  for (; i < size; ++i) {
    const float v = to_float(x[i]) - vfirst(mean);
    last += v * v;
  }
  const float variance = (vsum(squares) + last) / float(size);
  const Vec scale = vset(1.0f / std::sqrt(variance + eps));
  for_vectors(size, [&](int64_t i, auto lanes) {
    const Vec normed = (load(x + i, lanes) - mean) * scale, by = load(weight + i, lanes);
    store(out + i, bias ? vfma(normed, by, load(bias + i, lanes)) : normed * by, lanes);
  });
}

void layer_norm(uintptr_t out, uintptr_t x, uintptr_t weight, uintptr_t bias, int64_t rows,
                int64_t size, int64_t out_stride, int64_t x_stride, float eps, int dtype) {
  visit_float(dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(
        rows,
        [&](int64_t begin, int64_t end) {
          for (int64_t row = begin; row < end; ++row) {
            layer_norm_row((T*)out + row * out_stride, (const T*)x + row * x_stride,
                           (const T*)weight, (const T*)bias, size, eps);
          }
        },
        rows_holding(kMinElementsPerThread, size));
  });
}

}  // namespace

void bind_norm(nb::module_& m) {
  m.def("layer_norm", recorded(&layer_norm), nb::call_guard<nb::gil_scoped_release>(),
        "layer_norm(out, x, weight, bias, rows, size, out_stride, x_stride, eps, dtype)\n\n"
        "out = (x - mean) / sqrt(variance + eps) * weight + bias for each row of `size` elements.\n"
        "Addresses; out may be x. weight and bias are [size] of the same dtype; bias may be 0.");
  m.def(
      "rms_norm",
      recorded(+[](uintptr_t out, uintptr_t x, uintptr_t weight, int64_t rows, int64_t size,
                   int64_t out_stride, int64_t x_stride, float eps, float weight_offset,
                   int dtype) {
        rms_norm({reinterpret_cast<void*>(out), nullptr, reinterpret_cast<const void*>(x),
                  reinterpret_cast<const void*>(weight), rows, size, out_stride, x_stride, 0, eps,
                  weight_offset, 1.0f},
                 dtype);
      }),
      nb::call_guard<nb::gil_scoped_release>(),
      "rms_norm(out, x, weight, rows, size, out_stride, x_stride, eps, weight_offset, dtype)\n\n"
      "out = x / rms(x) * (weight_offset + weight) for each row of `size` elements. Addresses;\n"
      "out may be x. weight is [size] of the same dtype.");
  m.def(
      "add_rms_norm",
      recorded(+[](uintptr_t out, uintptr_t x, uintptr_t residual, uintptr_t weight, int64_t rows,
                   int64_t size, int64_t out_stride, int64_t x_stride, int64_t residual_stride,
                   float eps, float weight_offset, float residual_scale, int dtype) {
        rms_norm({reinterpret_cast<void*>(out), reinterpret_cast<void*>(residual),
                  reinterpret_cast<const void*>(x), reinterpret_cast<const void*>(weight), rows,
                  size, out_stride, x_stride, residual_stride, eps, weight_offset,
                  residual_scale},
                 dtype);
      }),
      nb::call_guard<nb::gil_scoped_release>(),
      "add_rms_norm(out, x, residual, weight, rows, size, out_stride, x_stride,\n"
      "    residual_stride, eps, weight_offset, residual_scale, dtype)\n\n"
      "residual += residual_scale * x, rounded to the dtype; out = rms_norm(residual).\n"
      "out may be x.");
}

}  // namespace hotshoe
