/* The number of random cases that a test tries. The environment variable TUTTI_CASES changes it:
 *
 *     TUTTI_CASES=1000   tries 1000 cases, however many are usual
 *     TUTTI_CASES=-40    tries at most 40 cases
 */
#ifndef TESTS_CASES_H
#define TESTS_CASES_H

#include <stdint.h>
#include <stdlib.h>

static inline uint32_t random_cases(uint32_t usual)
{
    const char *s = getenv("TUTTI_CASES");
    long n = s != NULL ? atol(s) : (long)usual;
    if (n < 0)
        n = -n < (long)usual ? -n : (long)usual;
    return (uint32_t)n;
}

#endif
